"""Who may call what: the same keys as over HTTP, and every method is accounted for."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from ingot.errors import UsageError
from ingot.serve.edge.keys import ADMIN, USE, make_key
from ingot.serve.edge.settings import EdgeSettings
from ingot.serve.grpc.server import SERVICES, GrpcSettings
from ingot.serve.grpc.stubs import ingot_v1_pb2 as v1
from ingot.serve.grpc.stubs import open_inference_pb2 as oip
from tests.serve.grpc.conftest import failure, served
from tests.support.fake_engine import FakeEngine, FakeModels, says

# A method, what it is asked, and who may: all, a key, or a key that may administer.
METHODS = {
    "inference.GRPCInferenceService/ServerLive": (oip.ServerLiveRequest(), "all"),
    "inference.GRPCInferenceService/ServerReady": (oip.ServerReadyRequest(), "all"),
    "inference.GRPCInferenceService/ModelReady": (oip.ModelReadyRequest(name="m"), USE),
    "inference.GRPCInferenceService/ServerMetadata": (oip.ServerMetadataRequest(), USE),
    "inference.GRPCInferenceService/ModelMetadata": (oip.ModelMetadataRequest(name="m"), USE),
    "inference.GRPCInferenceService/ModelInfer": (oip.ModelInferRequest(), USE),
    "inference.GRPCInferenceService/ModelStreamInfer": (oip.ModelInferRequest(), USE),
    "ingot.v1.Inference/Generate": (v1.GenerateRequest(text="a"), USE),
    "ingot.v1.Inference/GenerateStream": (v1.GenerateRequest(text="a"), USE),
    "ingot.v1.Inference/Abort": (v1.AbortRequest(), USE),
    "ingot.v1.Texts/Embed": (v1.EmbedRequest(inputs=[v1.TextInput(text="a")]), USE),
    "ingot.v1.Texts/Classify": (v1.ClassifyRequest(inputs=[v1.TextInput(text="a")]), USE),
    "ingot.v1.Texts/Score": (v1.ScoreRequest(text_1=["a"], text_2=["b"]), USE),
    "ingot.v1.Texts/Rerank": (v1.RerankRequest(query="a", documents=["b"]), USE),
    "ingot.v1.Models/List": (v1.ListRequest(), USE),
    "ingot.v1.Models/Load": (v1.LoadRequest(model="m"), ADMIN),
    "ingot.v1.Models/Unload": (v1.UnloadRequest(model="m"), ADMIN),
    "ingot.v1.Models/Reload": (v1.ReloadRequest(model="m"), ADMIN),
    "grpc.health.v1.Health/Check": (health_pb2.HealthCheckRequest(), "all"),
    "grpc.health.v1.Health/Watch": (health_pb2.HealthCheckRequest(), "all"),
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": (
        reflection_pb2.ServerReflectionRequest(list_services=""),
        USE,
    ),
}
REFUSED = (None, "wrong")  # keys that no method takes that needs one
STREAMS = ("ModelStreamInfer", "GenerateStream", "Watch", "ServerReflectionInfo")


def test_every_method_is_accounted_for():
    from ingot.serve.grpc.stubs import ingot_v1_pb2, open_inference_pb2

    files = (ingot_v1_pb2, open_inference_pb2, health_pb2, reflection_pb2)
    services = [s for file in files for s in file.DESCRIPTOR.services_by_name.values()]
    listed = {f"{s.full_name}/{method.name}" for s in services for method in s.methods} - {
        "grpc.health.v1.Health/List"
    }
    assert listed == set(METHODS)
    assert {service.full_name for service in services[:4]} == set(SERVICES)


@pytest.fixture
def keys(tmp_path):
    """A file of keys, and the text of one of each scope."""
    pairs = {scope: make_key(scope, scope) for scope in (USE, ADMIN)}
    path = tmp_path / "keys.txt"
    path.touch(0o600)
    path.write_text("".join(f"{key.line}\n" for _, key in pairs.values()))
    return path, {scope: text for scope, (text, _) in pairs.items()}


async def status_of(client, method: str, key: str | None) -> str:
    """How a call ends; OK where it is answered."""
    asked, _ = METHODS[method]
    name = method.rpartition("/")[2]
    channel = client.channel
    bidirectional = name in ("ModelStreamInfer", "ServerReflectionInfo")
    kind = (
        channel.stream_stream if bidirectional
        else channel.unary_stream if name in STREAMS
        else channel.unary_unary
    )  # fmt: skip
    stub = kind(f"/{method}", request_serializer=lambda message: message.SerializeToString())
    metadata = [("authorization", f"Bearer {key}")] if key else []
    call = stub(metadata=metadata) if bidirectional else stub(asked, metadata=metadata)
    try:
        # To write to a stream that was refused meanwhile is an internal error to the client.
        if bidirectional and key not in REFUSED:
            await call.write(asked)
        async with asyncio.timeout(60):
            await (call.read() if name in STREAMS else call)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    finally:
        call.cancel()
    return "OK"


@pytest.mark.parametrize("method", METHODS)
def test_a_method_lets_in_whom_it_should(run, keys, method):
    path, texts = keys
    needs = METHODS[method][1]

    async def work():
        models = AdminModels(m=FakeEngine(says("a")))
        async with served(models, key_file=path) as client:
            given = (*REFUSED, texts[USE], texts[ADMIN])
            return [await status_of(client, method, key) for key in given]

    none, wrong, use, admin = run(work())
    refused = {"UNAUTHENTICATED", "PERMISSION_DENIED"}
    if needs == "all":
        assert not {none, wrong, use, admin} & refused
    else:
        assert (none, wrong) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
        assert use == "PERMISSION_DENIED" if needs == ADMIN else use not in refused
        assert admin not in refused


@pytest.mark.parametrize("open_health", [False, True])
def test_probes_without_a_key_hear_of_no_model(run, keys, open_health):
    path, texts = keys

    async def work():
        models = FakeModels(m=FakeEngine(says("a")))
        async with served(models, key_file=path, open_health=open_health) as client:
            check = health_pb2_grpc.HealthStub(client.channel).Check
            found = []
            for name in ("m", "nobody", "", "inference.GRPCInferenceService"):
                for key in (None, texts[USE]):
                    metadata = [("authorization", f"Bearer {key}")] if key else []
                    call = check(health_pb2.HealthCheckRequest(service=name), metadata=metadata)
                    found.append((await call.code()).name)
            return found

    of_m, *others = run(work())
    assert of_m == ("OK" if open_health else "NOT_FOUND")
    assert others == ["OK", "NOT_FOUND", "NOT_FOUND", *["OK"] * 4]


class AdminModels(FakeModels):
    async def load(self, name: str) -> None:
        self.states[name] = "loaded"

    async def unload(self, name: str) -> None:
        self.states[name] = "unloaded"

    async def reload(self, name: str, *path: str) -> None:
        self.states[name] = f"reloaded from {path}"


@pytest.mark.parametrize(("opened", "status"), [(False, "PERMISSION_DENIED"), (True, "OK")])
def test_without_keys_nobody_administers_unless_it_is_asked_for(run, opened, status):
    async def work():
        models = AdminModels(m=FakeEngine(says("a")))
        async with served(models, open_admin=opened) as client:
            used = await status_of(client, "ingot.v1.Inference/Generate", None)
            return used, await status_of(client, "ingot.v1.Models/Unload", None)

    assert run(work()) == ("OK", status)


def test_a_unix_socket_lets_nobody_administer_at_the_port_beside_it(run, tmp_path):
    async def work():
        models = AdminModels(m=FakeEngine(says("a")))
        async with served(models, uds=tmp_path / "s") as client:
            assert client.edge.settings.admin_without_key
            return await status_of(client, "ingot.v1.Models/Reload", None)

    assert run(work()) == "PERMISSION_DENIED"


@pytest.mark.parametrize(("given", "refused"), [({}, True), ({"allow_no_key": True}, False)])
def test_a_port_of_the_network_beside_a_unix_socket_asks_for_a_key(tmp_path, given, refused):
    settings = EdgeSettings(uds=tmp_path / "s", host="0.0.0.0", **given)
    settings.check()  # nobody but the owner reaches the socket
    asks = pytest.raises(UsageError, match=r"0\.0\.0\.0 can be reached")
    with asks if refused else nullcontext():
        assert GrpcSettings.of(settings, 1).host == "0.0.0.0"


def test_why_a_model_failed_is_told_to_administrators_alone(run, keys):
    path, texts = keys

    async def work():
        models = FakeModels(m=FakeEngine(says("a")))
        models.error = "/secret/m.ingot is damaged"
        async with served(models, key_file=path) as client:
            bearers = [[("authorization", f"Bearer {texts[s]}")] for s in (USE, ADMIN)]
            listed = [await client.models.List(v1.ListRequest(), metadata=b) for b in bearers]
        return [each.models[0].error for each in listed]

    assert run(work()) == ["", "/secret/m.ingot is damaged"]


def test_models_are_listed_loaded_and_unloaded(run):
    async def work():
        models = AdminModels(m=FakeEngine(says("a")))
        async with served(models, open_admin=True) as client:
            listed = await client.models.List(v1.ListRequest())
            states = [
                (await client.models.Unload(v1.UnloadRequest(model="m"))).state,
                (await client.models.Load(v1.LoadRequest(model="m"))).state,
                (await client.models.Reload(v1.ReloadRequest(model="m"))).state,
                (await client.models.Reload(v1.ReloadRequest(model="m", path="/x"))).state,
            ]
            missing = await failure(client.models.Load(v1.LoadRequest(model="z")))
        return listed.models, states, missing

    (model,), states, missing = run(work())
    assert (model.name, model.state, model.max_model_len) == ("m", "loaded", 1024)
    assert model.artifact_id == "shakespeare"
    assert states == ["unloaded", "loaded", "reloaded from ()", "reloaded from ('/x',)"]
    assert missing[0] == grpc.StatusCode.NOT_FOUND


def test_a_key_aborts_only_its_own_requests(run, keys):
    path, texts = keys
    begun = asyncio.Event()

    def script(job):
        begun.set()
        yield asyncio.Event()  # never

    async def work():
        async with served(FakeModels(m=FakeEngine(script)), key_file=path) as client:
            mine, other = ([("authorization", f"Bearer {texts[s]}")] for s in (USE, ADMIN))
            asked = v1.GenerateRequest(text="a", request_id="r")
            call = client.inference.GenerateStream(asked, metadata=mine)
            reading = asyncio.ensure_future(failure(call))
            await begun.wait()
            told = [
                await client.inference.Abort(v1.AbortRequest(request_id="r"), metadata=metadata)
                for metadata in (other, mine)
            ]
            return [each.num_aborted for each in told], (await reading)[0]

    assert run(work()) == ([0, 1], grpc.StatusCode.CANCELLED)


def test_keys_share_no_cached_prefixes(run, keys):
    path, texts = keys
    engine = FakeEngine(says("a"))

    async def work():
        async with served(FakeModels(m=engine), key_file=path) as client:
            for scope in (USE, ADMIN):
                metadata = [("authorization", f"Bearer {texts[scope]}")]
                await client.inference.Generate(v1.GenerateRequest(text="a"), metadata=metadata)

    run(work())
    first, second = (job.salt for job in engine.jobs)
    assert first and second and first != second


def test_who_drains_takes_nothing_new_and_says_so(run):
    async def work():
        models = FakeModels(m=FakeEngine(says("a")))
        async with served(models) as client:
            health = health_pb2_grpc.HealthStub(client.channel)
            before = await health.Check(health_pb2.HealthCheckRequest())
            client.edge.draining = True
            after = await health.Check(health_pb2.HealthCheckRequest())
            refused = await failure(client.inference.Generate(v1.GenerateRequest(text="a")))
        return before.status, after.status, refused

    before, after, (code, _, trailing) = run(work())
    assert (before, after) == (health_pb2.HealthCheckResponse.SERVING,
                               health_pb2.HealthCheckResponse.NOT_SERVING)  # fmt: skip
    assert (code, trailing["ingot-code"]) == (grpc.StatusCode.UNAVAILABLE, "draining")


def test_reflection_lists_and_describes_every_service(run):
    async def work():
        async with served(FakeModels()) as client:
            stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
            ask = reflection_pb2.ServerReflectionRequest
            asked = [ask(list_services="")]
            asked += [ask(file_containing_symbol=name) for name in SERVICES]
            return [answer async for answer in stub.ServerReflectionInfo(iter(asked))]

    listed, *described = run(work())
    names = {service.name for service in listed.list_services_response.service}
    assert {*SERVICES, "grpc.health.v1.Health"} <= names
    assert all(each.file_descriptor_response.file_descriptor_proto for each in described)


def test_health_names_models_and_tells_who_watches(run):
    async def work():
        models = FakeModels(m=FakeEngine(says("a")))
        async with served(models) as client:
            health = health_pb2_grpc.HealthStub(client.channel)
            ask = health_pb2.HealthCheckRequest
            ready = [
                (await health.Check(ask(service=name))).status for name in ("", "m", *SERVICES)
            ]
            models.states["m"] = "loading"
            loading = (await health.Check(ask(service="m"))).status
            unknown = await failure(health.Check(ask(service="other")))
            watch = health.Watch(ask(service="m"))
            first = (await watch.read()).status
            models.states["m"] = "loaded"
            return ready, loading, unknown[0], first, (await watch.read()).status

    serving, not_serving = 1, 2
    assert run(work()) == (
        [serving] * (2 + len(SERVICES)),
        not_serving,
        grpc.StatusCode.NOT_FOUND,
        2,
        1,
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_in_use_is_an_error_that_names_it(run, host):
    from ingot.serve.grpc.server import GrpcServer
    from ingot.serve.requests.context import ServerContext

    async def work():
        async with served(FakeModels(), settings=GrpcSettings(host=host)) as client:
            port = client.server.port
            site = ServerContext(models=FakeModels())
            other = GrpcServer(site, client.edge, GrpcSettings(host=host, port=port))
            with pytest.raises(UsageError, match=f"cannot listen on .*{port}"):
                await other.start()
            await other.stop()

    run(work())
