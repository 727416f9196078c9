"""Configs of well-known open models as data, so that their ids work without a network.

A line is `family names : hidden layers heads kv_heads ffn vocabulary [key=value ...]`; further keys are those of the
model's own `config.json`. Names are compared without owner, case, dots, dashes and suffixes such as -Instruct. What is
here was written from the models' published configs; tests hold the parameter counts to the published ones.
"""

TABLE = """
llama TinyLlama-1.1B tiny-llama : 2048 22 32 4 5632 32000
llama Llama-2-7B CodeLlama-7B : 4096 32 32 32 11008 32000
llama Llama-2-13B : 5120 40 40 40 13824 32000
llama Llama-2-70B : 8192 80 64 8 28672 32000
llama Llama-3-8B Llama-3.1-8B DeepSeek-R1-Distill-Llama-8B : 4096 32 32 8 14336 128256
llama Llama-3-70B Llama-3.1-70B Llama-3.3-70B DeepSeek-R1-Distill-Llama-70B : 8192 80 64 8 28672 128256
llama Llama-3.1-405B : 16384 126 128 8 53248 128256
llama Llama-3.2-1B : 2048 16 32 8 8192 128256 tie_word_embeddings=1 head_dim=64
llama Llama-3.2-3B : 3072 28 24 8 8192 128256 tie_word_embeddings=1 head_dim=128
llama SmolLM2-135M SmolLM-135M : 576 30 9 3 1536 49152 tie_word_embeddings=1 max_position_embeddings=8192
llama SmolLM2-360M SmolLM-360M : 960 32 15 5 2560 49152 tie_word_embeddings=1 max_position_embeddings=8192
llama SmolLM2-1.7B SmolLM-1.7B : 2048 24 32 32 8192 49152 tie_word_embeddings=1 max_position_embeddings=8192
llama deepseek-coder-1.3b : 2048 24 16 16 5504 32256
llama deepseek-llm-7b DeepSeekMath-7B : 4096 30 32 32 11008 102400
llama deepseek-llm-67b : 8192 95 64 8 22016 102400
llama Yi-6B : 4096 32 32 4 11008 64000
llama Yi-34B : 7168 60 56 8 20480 64000
mistral Mistral-7B Mistral-7B-v0.1 Mistral-7B-v0.2 Zephyr-7B : 4096 32 32 8 14336 32000
mistral Mistral-7B-v0.3 : 4096 32 32 8 14336 32768
mistral Mistral-Nemo : 5120 40 32 8 14336 131072 head_dim=128
mistral Mistral-Small-24B : 5120 40 32 8 32768 131072 head_dim=128
mixtral Mixtral-8x7B : 4096 32 32 8 14336 32000 num_local_experts=8 num_experts_per_tok=2
mixtral Mixtral-8x22B : 6144 56 48 8 16384 32768 num_local_experts=8 num_experts_per_tok=2
qwen2 Qwen2-0.5B Qwen2.5-0.5B Qwen2.5-Coder-0.5B : 896 24 14 2 4864 151936 tie_word_embeddings=1
qwen2 Qwen2-1.5B Qwen2.5-1.5B Qwen2.5-Coder-1.5B Qwen2.5-Math-1.5B : 1536 28 12 2 8960 151936 tie_word_embeddings=1
qwen2 DeepSeek-R1-Distill-Qwen-1.5B : 1536 28 12 2 8960 151936
qwen2 Qwen2.5-3B Qwen2.5-Coder-3B : 2048 36 16 2 11008 151936 tie_word_embeddings=1
qwen2 Qwen2-7B Qwen2.5-7B Qwen2.5-Coder-7B Qwen2.5-Math-7B DeepSeek-R1-Distill-Qwen-7B : 3584 28 28 4 18944 152064
qwen2 Qwen2.5-14B Qwen2.5-Coder-14B DeepSeek-R1-Distill-Qwen-14B : 5120 48 40 8 13824 152064
qwen2 Qwen2.5-32B Qwen2.5-Coder-32B DeepSeek-R1-Distill-Qwen-32B QwQ-32B : 5120 64 40 8 27648 152064
qwen2 Qwen2-72B Qwen2.5-72B Qwen2.5-Math-72B : 8192 80 64 8 29568 152064
qwen3 Qwen3-0.6B : 1024 28 16 8 3072 151936 tie_word_embeddings=1 head_dim=128
qwen3 Qwen3-1.7B : 2048 28 16 8 6144 151936 tie_word_embeddings=1 head_dim=128
qwen3 Qwen3-4B : 2560 36 32 8 9728 151936 tie_word_embeddings=1 head_dim=128
qwen3 Qwen3-8B : 4096 36 32 8 12288 151936 head_dim=128
qwen3 Qwen3-14B : 5120 40 40 8 17408 151936 head_dim=128
qwen3 Qwen3-32B : 5120 64 64 8 25600 151936 head_dim=128
qwen2_moe Qwen1.5-MoE-A2.7B : 2048 24 16 16 5632 151936 num_experts=60 num_experts_per_tok=4 moe_intermediate_size=1408 shared_expert_intermediate_size=5632
qwen2_moe Qwen2-57B-A14B : 3584 28 28 4 18944 151936 num_experts=64 num_experts_per_tok=8 moe_intermediate_size=2560 shared_expert_intermediate_size=20480
qwen3_moe Qwen3-30B-A3B Qwen3-Coder-30B-A3B : 2048 48 32 4 6144 151936 head_dim=128 num_experts=128 num_experts_per_tok=8 moe_intermediate_size=768
qwen3_moe Qwen3-235B-A22B : 4096 94 64 4 12288 151936 head_dim=128 num_experts=128 num_experts_per_tok=8 moe_intermediate_size=1536
glm4_moe GLM-4.5-Air INTELLECT-3 : 4096 46 96 8 10944 151552 head_dim=128 attention_bias=1 n_routed_experts=128 num_experts_per_tok=8 n_shared_experts=1 moe_intermediate_size=1408 first_k_dense_replace=1
gemma gemma-2b : 2048 18 8 1 16384 256000 head_dim=256
gemma gemma-7b : 3072 28 16 16 24576 256000 head_dim=256
gemma2 gemma-2-2b gemma2-2b : 2304 26 8 4 9216 256000 head_dim=256
gemma2 gemma-2-9b gemma2-9b : 3584 42 16 8 14336 256000 head_dim=256
gemma2 gemma-2-27b gemma2-27b : 4608 46 32 16 36864 256000 head_dim=128
gemma3_text gemma-3-1b gemma3-1b : 1152 26 4 1 6912 262144 head_dim=256
gemma3_text gemma-3-4b gemma3-4b : 2560 34 8 4 10240 262208 head_dim=256
gemma3_text gemma-3-12b gemma3-12b : 3840 48 16 8 15360 262208 head_dim=256
gemma3_text gemma-3-27b gemma3-27b : 5376 62 32 16 21504 262208 head_dim=128
phi phi-1.5 phi-1_5 phi-1.5-1.3B : 2048 24 32 32 8192 51200
phi phi-2 : 2560 32 32 32 10240 51200
phi3 Phi-3-mini-4k Phi-3-mini-128k Phi-3.5-mini : 3072 32 32 32 8192 32064
phi3 Phi-3-medium : 5120 40 40 10 17920 32064
phi3 phi-4 : 5120 40 40 10 17920 100352
phi3 Phi-4-mini : 3072 32 24 8 8192 200064 tie_word_embeddings=1
gpt2 gpt2 gpt2-small : 768 12 12 12 3072 50257 n_positions=1024
gpt2 gpt2-medium : 1024 24 16 16 4096 50257 n_positions=1024
gpt2 gpt2-large : 1280 36 20 20 5120 50257 n_positions=1024
gpt2 gpt2-xl : 1600 48 25 25 6400 50257 n_positions=1024
gpt_neox pythia-70m : 512 6 8 8 2048 50304
gpt_neox pythia-160m : 768 12 12 12 3072 50304
gpt_neox pythia-410m : 1024 24 16 16 4096 50304
gpt_neox pythia-1b : 2048 16 8 8 8192 50304
gpt_neox pythia-1.4b : 2048 24 16 16 8192 50304
gpt_neox pythia-2.8b : 2560 32 32 32 10240 50304
gpt_neox pythia-6.9b : 4096 32 32 32 16384 50432
gpt_neox pythia-12b : 5120 36 40 40 20480 50688
gpt_neox gpt-neox-20b : 6144 44 64 64 24576 50432
gpt_neox stablelm-base-alpha-3b StableLM-Alpha-3B : 4096 16 32 32 16384 50688
gpt_neox stablelm-base-alpha-7b : 6144 16 48 48 24576 50432
falcon falcon-7b : 4544 32 71 1 18176 65024
deepseek_v2 DeepSeek-V2-Lite : 2048 27 16 16 10944 102400 kv_lora_rank=512 q_lora_rank=0 qk_rope_head_dim=64 qk_nope_head_dim=128 v_head_dim=128 n_routed_experts=64 n_shared_experts=2 num_experts_per_tok=6 moe_intermediate_size=1408 first_k_dense_replace=1
deepseek_v2 DeepSeek-V2 : 5120 60 128 128 12288 102400 kv_lora_rank=512 q_lora_rank=1536 qk_rope_head_dim=64 qk_nope_head_dim=128 v_head_dim=128 n_routed_experts=160 n_shared_experts=2 num_experts_per_tok=6 moe_intermediate_size=1536 first_k_dense_replace=1
deepseek_v3 DeepSeek-V3 DeepSeek-R1 DeepSeek-V3-671B DeepSeek-V3.1 : 7168 61 128 128 18432 129280 kv_lora_rank=512 q_lora_rank=1536 qk_rope_head_dim=64 qk_nope_head_dim=128 v_head_dim=128 n_routed_experts=256 n_shared_experts=1 num_experts_per_tok=8 moe_intermediate_size=2048 first_k_dense_replace=3
"""  # noqa: E501

KEYS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size",
        "vocab_size")  # fmt: skip


def configs() -> dict[str, dict[str, int | str]]:
    """name -> config, for every name of the table, in its order."""
    found: dict[str, dict[str, int | str]] = {}
    for line in TABLE.strip().splitlines():
        names, _, numbers = line.partition(" : ")
        family, *called = names.split()
        plain, keyed = [], {}
        for word in numbers.split():
            key, equals, value = word.partition("=")
            if equals:
                keyed[key] = int(value)
            else:
                plain.append(int(word))
        config: dict[str, int | str] = {"model_type": family, **dict(zip(KEYS, plain, strict=True)), **keyed}
        found.update(dict.fromkeys(called, config))
    return found
