"""Gradients over the network: one exchange, time to a target, and the evidence for the defaults."""

from __future__ import annotations

from benchmarks.tables.table import Table

SUMWIRE = (
    "alone: sumwire-4",
    "alone: sumwire-2",
    "DDP: sumwire-4",
    "DDP: sumwire-2",
    "DDP: sumwire-12-in-all",
    "DDP: sumwire-4-feedback",
)
STAGES = ("encode", "exchange", "add", "decode")
TRAINED = {
    "conv": ("test_accuracy", "test accuracy, %", 2),
    "transformer": ("validation_loss", "validation loss", 4),
}
"""What counts at the end of training: its field, its heading, its digits."""


def _exchange(link: str) -> Table:
    columns = {
        "": "{contender}",
        "ms": "{ms[median]:.0f}",
        "lowest - highest": "{ms[lowest]:.0f} - {ms[highest]:.0f}",
        "fp32 / it": "{fp32_over_it:.2f}",
        "fp16 / it": "{fp16_over_it:.2f}",
        "bits per value": "{bits_per_value:.2f}",
    }
    if link != "loopback":
        columns |= {"wire limit, ms": "{wire_limit_ms:.0f}", "x limit": "{over_limit:.2f}"}
    return Table("exchange", columns, {"section": "main", "link": link, "ranks": 4})


def _gains(*links: str) -> Table:
    """How much less time 4 bits take at each link."""
    columns = {"link": "{link}"}
    for yardstick in ("fp32", "fp16"):
        for where, said in (("alone", "exchange alone"), ("DDP", "inside DDP")):
            columns[f"{yardstick} / Sumwire, {said}"] = f"{{at[{where}: sumwire-4][{yardstick}_over_it]:.2f}}"
    return Table("exchange", columns, {"section": "main", "link": links, "ranks": 4}, ("link", "contender"))


def _over_seeds(name: str, spec: str) -> str:
    return f"{{{name}[median]:{spec}}} ({{{name}[lowest]:{spec}}} to {{{name}[highest]:{spec}}})"


def _time_to_target(task: str, final: str) -> Table:
    columns = {
        "method": "{method}",
        "reached": "{reached} of {seeds}",
        "s to target": _over_seeds("seconds_to_target", ".1f"),
        "of fp32's": "{percent_of_fp32:.0f}%",
        "steps to target": _over_seeds("steps_to_target", ".0f"),
        "ms/step": _over_seeds("ms_per_step", ".0f"),
        "kB/step": "{kb_per_step:,.0f}",
        final: "{final[mean]:.4f} ± {final[deviation]:.4f}",
        "ranks agree": "{ranks_agree}",
    }
    return Table("time_to_target", columns, {"task": task, "link": "100 Mbit/s"})


def _evidence(task: str, *workers: int) -> Table:
    """Of 4 workers all settings; of more, the defaults now and before."""
    score, said, digits = TRAINED[task]
    columns = {"setting": "{setting}", "energy": "{energy:g}", "feedback": "{feedback}"}
    if workers != (4,):
        columns = {"workers": "{workers}", "setting": "{setting}"}
    columns |= {
        "bits up + down": "{bits_up:.2f} + {bits_down:.2f}",
        "training loss": "{training_loss[mean]:.4f} ± {training_loss[deviation]:.4f}",
        said: f"{{{score}[mean]:.{digits}f}} ± {{{score}[deviation]:.{digits}f}}",
        "less fp32's": f"{{less_fp32[mean]:+.{digits}f}} ± {{less_fp32[standard_error]:.{digits}f}}",
        "layers' error: median, worst": "{layer_error[median]:.3f}, {layer_error[worst]:.3f}",
    }
    return Table("training", columns, {"section": "settings", "task": task, "workers": workers})


TABLES = {
    "gains": _gains("100 Mbit/s", "1 Gbit/s", "10 Gbit/s"),
    "gains-all": _gains("100 Mbit/s", "1 Gbit/s", "10 Gbit/s", "loopback"),
    "exchange-100Mbit": _exchange("100 Mbit/s"),
    "exchange-1Gbit": _exchange("1 Gbit/s"),
    "exchange-10Gbit": _exchange("10 Gbit/s"),
    "exchange-loopback": _exchange("loopback"),
    "exchange-stages": Table(
        "exchange",
        {
            "link": "{link}",
            "": "{contender}",
            **{f"{stage}, ms": f"{{last_run_rank0_ms[{stage}]:.0f}}" for stage in STAGES},
            "break-even, Gbit/s": "{break_even_gbit:.1f}",
        },
        {"section": "main", "ranks": 4, "contender": SUMWIRE},
    ),
    "exchange-cpu": Table(
        "exchange",
        {"": "{contender}", "ms": "{ms[median]:.0f}", "CPU per rank, ms": "{cpu_ms_per_rank:.0f}"},
        {"section": "cpu", "link": "10 Gbit/s", "ranks": 4, "contender": ("alone: fp32", "alone: sumwire-4")},
    ),
    "target-conv": _time_to_target("conv", "final accuracy"),
    "target-transformer": _time_to_target("transformer", "final loss"),
    "evidence-conv": _evidence("conv", 4),
    "evidence-transformer": _evidence("transformer", 4),
    "evidence-many-conv": _evidence("conv", 16, 64),
    "evidence-many-transformer": _evidence("transformer", 16, 64),
    "evidence-options": Table(
        "training",
        {
            "option": "{option}",
            "settings": "{settings}",
            "difference in validation loss": "{validation_loss_difference[mean]:+.4f} ± "
            "{validation_loss_difference[standard_error]:.4f}",
        },
        {"section": "options", "workers": 4},
    ),
}
