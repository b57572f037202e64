"""The templates for clusters: Ray's own check of `ray up` files, and what a run needs of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.run import ROOT

pytestmark = pytest.mark.extra("ray")
FOLDER = ROOT / "docs" / "clusters"


def read(path: Path) -> dict:
    import yaml

    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_ray_accepts_the_file_for_ray_up() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = read(FOLDER / "ray_up_ec2.yaml")
    validate_config(prepare_config(config))
    assert config["available_node_types"]["head"]["resources"]["CPU"] == 0, "loops are not to share it with candidates"


def test_a_wrong_file_is_not_accepted() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    with pytest.raises(Exception, match="nodes_of_ours"):
        validate_config(prepare_config({**read(FOLDER / "ray_up_ec2.yaml"), "nodes_of_ours": 3}))


def test_a_pod_with_devices_has_as_many_cores_for_ray_as_it_asks_kubernetes_for() -> None:
    groups = {group["groupName"]: group for group in read(FOLDER / "kuberay.yaml")["spec"]["workerGroupSpecs"]}
    device = groups["device"]
    (container,) = device["template"]["spec"]["containers"]
    asked = container["resources"]["limits"]["aws.amazon.com/neuroncore"]
    assert f'neuron_cores\\": {asked}' in device["rayStartParams"]["resources"]
