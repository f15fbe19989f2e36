"""Ray's router of requests to replicas: by prefix and load."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ray.serve.request_router import RequestRouter

from ingot.serve.ray.affinity import Balance, PrefixTable


class PrefixRouter(RequestRouter):  # type: ignore[misc]  # ray has no types of it
    """Offers a request to replicas in the order of `PrefixTable`.

    The second argument of a call has the request's blocks; a call without goes to the idlest.
    """

    def initialize_state(self, **balance: Any) -> None:
        """Takes the fields of `Balance`, from the deployment's configuration."""
        self._table = PrefixTable(Balance(**balance))
        self._running: Counter[str] = Counter()

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        """The replicas in their order, each a rank of its own."""
        if not candidate_replicas:
            return []
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        loads = {name: self._running[name] for name in by_name}
        blocks = _blocks(pending_request)
        order = self._table.order(blocks, loads)
        # Noted already here: of many that come at once, the others follow the first.
        self._table.note(blocks, order[0])
        return [[by_name[name]] for name in order]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """Notes where a request went."""
        super().on_request_routed(pending_request, replica_id, result)
        self._table.note(_blocks(pending_request), replica_id.unique_id)

    def on_send_request(self, replica_id: Any) -> None:
        """Notes that a replica has one request more, before it has accepted it."""
        super().on_send_request(replica_id)
        self._running[replica_id.unique_id] += 1

    def on_request_completed(self, replica_id: Any, internal_request_id: str) -> None:
        """Notes that a replica has one request less."""
        super().on_request_completed(replica_id, internal_request_id)
        name = replica_id.unique_id
        self._running[name] -= 1
        if self._running[name] <= 0:  # names of replicas that have gone are not kept
            del self._running[name]


def _blocks(pending_request: Any) -> list[int]:
    arguments: Any = pending_request.args if pending_request is not None else ()
    return list(arguments[1]) if len(arguments) > 1 else []
