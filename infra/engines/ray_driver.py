"""The only process of ours that knows Ray: it is asked by lines of JSON, and submits what they say to a cluster.

    python -m infra.engines.ray_driver ADDRESS BUNDLE KEY PYTHON NUMPY

A process of its own, since Ray ends the process that speaks to a cluster when the cluster's head or the node below it
is gone, and since what it prints and reads from the environment is then not the run's. Ends when its input does; Ray
then ends what it had submitted.

In, a line each: `{"id": N, "message": {...}, "node": ID, "cores": N}` (message as `infra.engines.agent` takes it),
`{"id": N, "nodes": true}`, or `{"cancel": N}`. Out: `{"ready": {...}}` or `{"unreachable": "why"}` first, `{"places":
N}` as they change, `{"silent": "why"}` while nobody says how many there are, and for an id lines of the node, as
`infra.engines.at_node` says them, the last with `end`, `answer`, `failed`, `refused`, `overdue` or `lost`; or `nodes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import ObjectStoreFullError, OutOfDiskError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from infra.engines import at_node
from infra.engines.at_node import GRACE_S, is_last, work

_CONNECT_S = 10.0
SPREAD = "SPREAD"
"""Ray's default asks for one place more while something waits, and takes that back as soon as nothing does: of messages
shorter than a place takes to come, two wait behind each other on one node for good while another stands idle."""
_LOOK_S = 2.0
"""Between two looks at how many CPUs there are."""
_SILENT_S = 5.0
"""A head that says nothing for so long is said to be silent; Ray itself waits a minute before it gives up."""


def carry_out(message: dict[str, Any], setup: dict[str, Any], held: list[Any]) -> Iterator[dict[str, Any]]:
    """On a node. held: the bundle in the object store, behind a list so that it is fetched where it is missing only."""
    context = ray.get_runtime_context()
    cores = [str(core) for core in context.get_accelerator_ids().get("neuron_cores", [])]
    yield from work(message, setup, lambda: bytes(ray.get(held[0])), context.get_node_id(), cores)


class CoreGroup:
    """On a node, for as long as the run: some of its NeuronCores, in a process that takes one command at a time."""

    def carry_out(self, message: dict[str, Any], setup: dict[str, Any], held: list[Any]) -> Iterator[dict[str, Any]]:
        yield from carry_out(message, setup, held)


class Driver:
    """Of one cluster, until its input ends."""

    def __init__(self, setup: dict[str, Any], data: bytes) -> None:
        self._setup = setup
        self._data = data
        self._held: list[Any] = []
        self._task = ray.remote(carry_out)
        self._groups: dict[tuple[int, str], asyncio.LifoQueue[Any]] = {}
        """Actors that are idle, by how many cores each has and on which node they must be."""
        self._made: dict[tuple[int, str], int] = {}
        self._running: dict[int, asyncio.Task[None]] = {}

    async def serve(self, lines: AsyncIterator[str]) -> None:
        looking = asyncio.create_task(self._look())
        async for line in lines:
            request = json.loads(line)
            if "cancel" in request:
                if request["cancel"] in self._running:
                    self._running[request["cancel"]].cancel()
                continue
            self._running[request["id"]] = task = asyncio.create_task(self._one(request))
            task.add_done_callback(functools.partial(self._forget, request["id"]))
        looking.cancel()

    def _forget(self, number: int, task: asyncio.Task[None]) -> None:
        del self._running[number]

    async def _one(self, request: dict[str, Any]) -> None:
        number = request["id"]
        if "nodes" in request:
            say({"id": number, "nodes": await asyncio.to_thread(nodes)})
            return
        try:
            self._hold()
            if request.get("cores"):
                last = await self._on_cores(request)
            else:
                placed = _affinity(request) or {"scheduling_strategy": SPREAD}
                task = self._task.options(num_cpus=1, max_retries=0, num_returns="streaming", **placed)
                last = await self._see_through(request, task.remote)
        except (ObjectStoreFullError, OutOfDiskError) as error:
            last = {"lost": f"the object store is full: {_line(error)}", "full": True}
        except RayTaskError as error:  # of ours, on the node
            full = isinstance(error.cause, (ObjectStoreFullError, OutOfDiskError))
            last = {"lost" if full else "failed": f"on the node: {_line(error.cause)}", "full": full}
        except RayError as error:
            last = {"lost": _line(error)}
        except Exception as error:  # whoever asked is not to wait for ever
            last = {"failed": f"its driver cannot submit it: {_line(error)}"}
        say({"id": number, **last})

    def _hold(self) -> None:
        """The bundle, in the object store. Raises ObjectStoreFullError."""
        if not self._held:
            self._held = [ray.put(self._data)]

    async def _on_cores(self, request: dict[str, Any]) -> dict[str, Any]:
        key = (int(request["cores"]), str(request.get("node", "")))
        idle = self._groups.setdefault(key, asyncio.LifoQueue())
        there = ray.cluster_resources().get("neuron_cores", 0)
        if idle.empty() and (key[1] or self._made.get(key, 0) < max(1, there // key[0])):
            self._made[key] = self._made.get(key, 0) + 1
            made = ray.remote(CoreGroup).options(
                num_cpus=1, resources={"neuron_cores": key[0]}, max_restarts=0, **_affinity(request)
            )
            idle.put_nowait(made.remote())
        actor = await idle.get()
        whole = False
        try:
            method = actor.carry_out.options(num_returns="streaming")
            last = await self._see_through(request, method.remote)
            whole = "overdue" not in last
            return last
        finally:
            if whole and not key[1]:
                idle.put_nowait(actor)
            else:  # dead, stuck, or asked for one node only: its cores are for others
                self._made[key] -= 1
                with contextlib.suppress(RayError):
                    ray.kill(actor)

    async def _see_through(self, request: dict[str, Any], submit: Any) -> dict[str, Any]:
        """The last that is said of it; all before is passed on."""
        limit_s = float(request["message"]["limit_s"]) + 2 * GRACE_S
        said_of = submit(request["message"], self._setup, self._held)
        began: float | None = None
        loop = asyncio.get_running_loop()
        while True:
            left_s = None if began is None else max(0.0, began + limit_s - loop.time())
            try:
                item = await asyncio.wait_for(anext(said_of), left_s)
                said: dict[str, Any] = await item
            except asyncio.TimeoutError:
                with contextlib.suppress(RayError, ValueError, TypeError):
                    ray.cancel(said_of, force=True)
                return {"overdue": request["message"]["limit_s"]}
            except asyncio.CancelledError:
                with contextlib.suppress(RayError, ValueError, TypeError):
                    ray.cancel(said_of)
                raise
            except StopAsyncIteration:
                return {"lost": "it ended and said nothing"}
            if "started" in said:
                began = loop.time()
            if is_last(said):
                return said
            say({"id": request["id"], **said})

    async def _look(self) -> None:
        before = -1
        while True:
            asked = asyncio.create_task(asyncio.to_thread(ray.cluster_resources))
            if not (await asyncio.wait([asked], timeout=_SILENT_S))[0]:
                say({"silent": "its head does not answer"})
                before = -1
            there = await asked
            places = int(there.get("CPU", 0))
            if places != before:
                say({"places": places, "neuron_cores": int(there.get("neuron_cores", 0))})
                before = places
            await asyncio.sleep(_LOOK_S)


def nodes() -> list[dict[str, Any]]:
    """Those that are there now, as `infra.engines.engine.Node` has them."""
    return [
        {
            "id": node["NodeID"],
            "host": node["NodeManagerHostname"],
            "address": node["NodeManagerAddress"],
            "cpus": node["Resources"].get("CPU", 0.0),
            "neuron_cores": node["Resources"].get("neuron_cores", 0.0),
            "memory_bytes": int(node["Resources"].get("memory", 0)),
            "object_store_bytes": int(node["Resources"].get("object_store_memory", 0)),
        }
        for node in ray.nodes()
        if node["Alive"]
    ]


def _affinity(request: dict[str, Any]) -> dict[str, Any]:
    if not request.get("node"):
        return {}
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(request["node"], soft=False)}


def _line(error: BaseException) -> str:
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said[:300]}"


def say(said: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


async def _lines() -> AsyncIterator[str]:
    waiting: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(waiting.put_nowait, line)
        os._exit(0)  # whoever asked is gone: Ray ends what was submitted

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield await waiting.get()


def main(address: str, bundle: str, key: str, python: str, numpy: str) -> int:
    cloudpickle.register_pickle_by_value(at_node)  # on the nodes there is no such module
    try:
        if address != "auto":  # Ray itself would try for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
        ray.init(
            address=address, namespace="nki-optimizer", log_to_driver=False, logging_level=logging.ERROR,
            _skip_env_hook=True,
        )  # fmt: skip
    except (RayError, ConnectionError, RuntimeError, ValueError, OSError) as error:
        say({"unreachable": _line(error)})
        return 1
    say({"ready": {"ray": ray.__version__}})
    driver = Driver({"key": key, "python": python, "numpy": numpy}, Path(bundle).read_bytes())
    asyncio.run(driver.serve(_lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
