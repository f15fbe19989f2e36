"""The text tower of a model of text and images, as if it were the whole model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ingot.models.checkpoints.formats.settings import SETTINGS
from ingot.models.config import ModelConfig
from ingot.models.fields import Fields

# Where older and newer checkpoints have the tower.
SPELLINGS: Mapping[str, str] = {
    "model.language_model.{rest}": "model.{rest}",
    "language_model.model.{rest}": "model.{rest}",
    "language_model.lm_head.{rest}": "lm_head.{rest}",
}
# The tensors of images, by the names that these spellings leave.
UNUSED = (
    "vision_tower.{rest}",
    "multi_modal_projector.{rest}",
    "model.vision_tower.{rest}",
    "model.multi_modal_projector.{rest}",
)
# Keys beside the tower: those that it may lack itself, and those of images.
_OWN = ("architectures", "dtype", "torch_dtype", "bos_token_id", "eos_token_id")
_OF_IMAGES = (
    *("vision_config", "mm_tokens_per_image", "image_token_index", "boi_token_index"),
    *("eoi_token_index", "image_token_id", "projector_hidden_act", "vision_feature_layer"),
    *("multimodal_projector_bias", "spatial_merge_size"),
)


def parse_text(
    fields: Fields,
    parse: Callable[[Fields], ModelConfig],
    *,
    tied: bool,
    beside: Sequence[str] = (),
) -> ModelConfig:
    """Reads the object `text_config`, and beside it what a whole model has.

    Args:
        fields: config.json.
        parse: reads the object.
        tied: `tie_word_embeddings` where neither the object nor config.json says it.
        beside: further keys of images and films that the files of this family have.
    """
    text = fields.nested("text_config")
    outer = {key: fields.raw(key, None) for key in _OWN}
    text.assume(**{key: value for key, value in outer.items() if value is not None})
    text.assume(tie_word_embeddings=fields.flag("tie_word_embeddings", tied))
    for key in (*_OF_IMAGES, *beside, *SETTINGS):  # what reads the tensors reads the settings
        fields.raw(key, None)
    config = parse(text)
    text.finish()
    return config
