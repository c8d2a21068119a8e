"""The Trainer of transformers with compressed gradients: one callback. Resumes from its last checkpoint.

torchrun --standalone --nproc-per-node 2 examples/train_hf_trainer.py
"""

import argparse
import zlib

import torch
from torch.nn.utils import parameters_to_vector
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

from sumwire.train.huggingface import SumwireTrainerCallback


def sentences(count: int, length: int = 32) -> list[dict[str, torch.Tensor]]:
    """Token k + 1 follows token k, from a random start: easy to learn."""
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(64, (count, 1), generator=generator)
    return [{"input_ids": tokens, "labels": tokens} for tokens in (starts + torch.arange(length)) % 64]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", default="hf-trainer")
    args = parser.parse_args()

    set_seed(0)
    config = GPT2Config(
        vocab_size=64, n_positions=32, n_embd=64, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None
    )
    model = GPT2LMHeadModel(config)
    # Links within one machine are so fast that Sumwire would fall back to all-reduce: fallback=False.
    compress = SumwireTrainerCallback(bits=4, feedback=True, fallback=False)
    training = TrainingArguments(
        args.out, use_cpu=True, max_steps=args.steps, per_device_train_batch_size=8, learning_rate=3e-3,
        save_steps=10, logging_steps=10, report_to=[], disable_tqdm=True, ddp_find_unused_parameters=False,
    )  # fmt: skip
    trainer = Trainer(model, training, train_dataset=sentences(1024), callbacks=[compress])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(args.out))
    weights = parameters_to_vector(model.parameters()).detach().numpy()
    print(
        f"rank {training.process_index} after {compress.state.step} steps: "
        f"loss {trainer.state.log_history[-2]['loss']}, {compress.state.statistics.bits_per_value:.1f} bits per value, "
        f"weights {zlib.crc32(weights):08x}"
    )


if __name__ == "__main__":
    main()
