"""Finds the pods of an exported Service in Cloud Map, and calls one of them over HTTP.

As an AWS Lambda function the handler is `discover.handler`; in an ECS task, `python discover.py`. Both need boto3, a role
that allows servicediscovery:DiscoverInstances, and security groups that reach the pods.

    NAMESPACE   the Cloud Map namespace: that of Kubernetes, unless --instances-namespace or an annotation says otherwise
    SERVICE     the Cloud Map service: the name of the Service
"""

import os
import random
import urllib.request

import boto3

cloudmap = boto3.client("servicediscovery", region_name=os.environ.get("AWS_REGION"))


def endpoints(namespace, service):
    """The addresses of the healthy pods, or of all if none is, as (host, port); at most 1,000, in random order."""
    answer = cloudmap.discover_instances(
        NamespaceName=namespace,
        ServiceName=service,
        HealthStatus="HEALTHY_OR_ELSE_ALL",
        MaxResults=1000,  # 100 without it
    )
    found = []
    for instance in answer["Instances"]:
        attributes = instance["Attributes"]
        host = attributes.get("AWS_INSTANCE_IPV4") or f"[{attributes['AWS_INSTANCE_IPV6']}]"
        found.append((host, int(attributes["AWS_INSTANCE_PORT"])))
    random.shuffle(found)
    return found


def handler(event, context):
    """Calls the first pod that answers."""
    for host, port in endpoints(os.environ["NAMESPACE"], os.environ["SERVICE"]):
        try:
            with urllib.request.urlopen(f"http://{host}:{port}/hostname", timeout=2) as answer:
                return {"statusCode": answer.status, "body": answer.read().decode()}
        except OSError:
            continue  # It may have gone since. Ask the next one.
    return {"statusCode": 503, "body": "no pod answers"}


if __name__ == "__main__":
    print(handler({}, None))
