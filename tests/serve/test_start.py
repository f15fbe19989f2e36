"""A server that cannot do what its options say does not stay."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from ingot.errors import UsageError
from ingot.serve.edge.settings import EdgeSettings
from ingot.serve.openai.chat_defaults import ChatDefaults
from ingot.serve.serving import Kept, Named, Serving, run

NO_THINKING = Kept(chats=ChatDefaults(thinks=False))


@pytest.mark.parametrize("serving", [Serving(model=NO_THINKING), Serving(own={"m": NO_THINKING})])
def test_it_ends_where_a_model_lacks_what_conversations_are_to_get(
    serving: Serving, fake_artifact: Path, tmp_path: Path
) -> None:
    serving = structs.replace(serving, in_process=True)
    with pytest.raises(UsageError, match=r"^m: the chat template has no switch for thinking"):
        run([Named("m", str(fake_artifact))], serving, EdgeSettings(uds=tmp_path / "s"))
