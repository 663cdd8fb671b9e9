"""The Helm chart, and what the tests do with it."""

import base64
import json
import subprocess
from pathlib import Path

import yaml

from cluster import get

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm/podsandboxd"


def helm(*args, check=True, timeout=180):
    done = subprocess.run(["helm", *map(str, args)], capture_output=True, text=True, timeout=timeout)
    assert not check or done.returncode == 0, f"helm {args}: {done.stderr}"
    return done


def flags(values):
    """Values, by their dotted names, as Helm's flags."""
    return [word for name, value in values.items() for word in ("--set-json", f"{name}={json.dumps(value)}")]


def rendered(values, namespace="podsandbox"):
    """The objects of the chart with these values, and what it tells whoever installs it."""
    done = helm("template", "box", CHART, "-n", namespace, *flags(values))
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def secret_of(name, namespace):
    return {key: base64.b64decode(value).decode() for key, value in get("secret", name, "-n", namespace)["data"].items()}
