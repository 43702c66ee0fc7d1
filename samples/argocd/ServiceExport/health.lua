-- Healthy: the registry has exactly this export, the clusters agree, and its pods are registered if they are to be.
local found = {}
if obj.status ~= nil and obj.status.conditions ~= nil then
  for _, condition in ipairs(obj.status.conditions) do
    found[condition.type] = condition
  end
end
local valid, ready, conflict, registered = found.Valid, found.Ready, found.Conflict, found.Registered

if valid ~= nil and valid.status == "False" then
  return { status = "Degraded", message = valid.message }
end
if ready == nil or (ready.observedGeneration ~= nil and ready.observedGeneration < obj.metadata.generation) then
  return { status = "Progressing", message = "The controller has not looked at it yet" }
end
if ready.status ~= "True" then
  if ready.reason == "Pending" then
    return { status = "Progressing", message = ready.message }
  end
  return { status = "Degraded", message = ready.message }
end
if conflict ~= nil and conflict.status == "True" then
  return { status = "Degraded", message = conflict.message }
end
if registered ~= nil and registered.status == "False" and registered.reason ~= "Disabled" then
  if registered.reason == "Pending" then
    return { status = "Progressing", message = registered.message }
  end
  return { status = "Degraded", message = registered.message }
end
return { status = "Healthy", message = ready.message }
