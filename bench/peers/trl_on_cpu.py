"""GRPO as both learning peers have it, with what makes a small model on a CPU fast: full precision, nothing recomputed, nothing reported or saved."""
import tempfile

from trl import GRPOConfig


def grpo_on_cpu(**settings):
    """`settings` are those of GRPOConfig that a run names itself."""
    return GRPOConfig(
        output_dir=tempfile.mkdtemp(),  # nothing is saved
        gradient_accumulation_steps=1,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        scale_rewards="group",
        lr_scheduler_type="linear",
        weight_decay=0.0,
        max_grad_norm=1.0,
        use_cpu=True,
        bf16=False,
        activation_checkpointing=False,
        optim="adamw_torch_fused",
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        **settings,
    )
