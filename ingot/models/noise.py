"""Keys of a config.json that change no number of an inference."""

from __future__ import annotations

# Keys that Hugging Face writes and that change no number of an inference.
# fmt: off
NOISE = frozenset({
    # bookkeeping of the library that wrote the file
    "transformers_version", "_name_or_path", "name_or_path", "model_type", "architectures",
    "use_cache", "_attn_implementation", "_attn_implementation_autoset", "attn_implementation",
    "torchscript", "_commit_hash", "return_dict", "output_attentions", "output_hidden_states",
    "tokenizer_class", "prefix", "unsloth_fixed", "unsloth_version", "transformers.js_config",
    "is_llama_config", "use_bfloat16", "_unsloth_fixed", "pad_token_id", "sep_token_id",
    "decoder_start_token_id", "tf_legacy_loss", "cache_implementation",
    "n_special", "predict_special_tokens", "output_past", "num_logits_to_keep",
    "max_sequence_length", "model_max_length", "tokenizer_model_max_length",
    "tokenizer_padding_side", "use_flash_attn", "_flash_attn_2_enabled", "loss_type",
    "keys_to_ignore_at_inference",
    # the model's own code, which is never run: where its architecture is known, it is built here
    "auto_map",
    # heads for other tasks
    "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
    "summary_first_dropout",
    # heads of BERT's first code, which no class of transformers has
    "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
    "pooler_size_per_head", "pooler_type",
    # training
    "initializer_range", "attention_dropout", "attention_probs_dropout_prob", "hidden_dropout",
    "hidden_dropout_prob", "resid_pdrop", "embd_pdrop",
    "attn_pdrop", "dropout", "embedding_dropout", "residual_dropout", "classifier_dropout",
    "finetuning_task", "task_specific_params", "problem_type", "id2label", "label2id",
    "num_labels", "_num_labels", "gradient_checkpointing", "pretraining_tp",
    "chunk_size_feed_forward", "output_router_logits", "router_aux_loss_coef",
    "router_jitter_noise",
    # generation defaults, which belong to generation_config.json
    "do_sample", "temperature", "top_k", "top_p", "typical_p", "max_length", "min_length",
    "num_beams", "num_beam_groups", "num_return_sequences", "length_penalty",
    "repetition_penalty", "diversity_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "early_stopping", "forced_bos_token_id",
    "forced_eos_token_id", "begin_suppress_tokens", "suppress_tokens", "output_scores",
    "return_dict_in_generate", "remove_invalid_values", "exponential_decay_length_penalty",
})
# fmt: on
# Keys of what other classes have, which the class of a model does not read unless its family does:
# models that were converted from those keep them.
LEFTOVERS = ("sliding_window", "use_sliding_window", "max_window_layers", "sliding_window_pattern")
