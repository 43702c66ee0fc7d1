-- Healthy: the service can be used in this cluster, and no cluster that exports it is silent.
local found = {}
if obj.status ~= nil and obj.status.conditions ~= nil then
  for _, condition in ipairs(obj.status.conditions) do
    found[condition.type] = condition
  end
end
if found.Ready == nil then
  return { status = "Progressing", message = "The controller has not looked at it yet" }
end
if found.Ready.status ~= "True" then
  return { status = "Degraded", message = found.Ready.message }
end
if found.Stale ~= nil and found.Stale.status == "True" then
  return { status = "Degraded", message = found.Stale.message }
end
return { status = "Healthy", message = found.Ready.message }
