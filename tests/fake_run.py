"""The files of a run that decide what is measured about it, without networks."""

import json


def make_run(path, data="toyfaces:40", subsets=4, decoder=True, weights=b"w"):
    """The files that decide what is measured; nothing here is ever loaded as a network."""
    for folder in ("unet", "encoder", *(["decoder"] if decoder else [])):
        (path / folder).mkdir(parents=True)
        (path / folder / "model.safetensors").write_bytes(weights)
    (path / "encoder" / "config.json").write_text(json.dumps({"size": 16, "dims": 8}))
    (path / "config.yaml").write_text(f"data: {data}\n")
    (path / "run.json").write_text(json.dumps({"verb": "train"}))
    (path / "partition.json").write_text(json.dumps({"subsets": subsets}))
    return path
