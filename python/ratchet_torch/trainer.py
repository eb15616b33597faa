"""One policy in training: steps, scores, versions. What it is told to do, in what order, decides its bits."""

import math
import os
import time

import torch
from safetensors.torch import save_file

from . import states
from .exports import export
from .losses import PolicyLoss, Tokens, aggregation_of, is_flat, refusal_reason, supervised_loss
from .micro_batches import cut, pack, keeps_apart, rows_usual
from .model import Model, base_of
from .rows import Rows, mini_batches
from .updates import Updates
from .wire import Refused, numbers

# A KL that is only reported is estimated on so many rows at least, at most, and as a part of the batch.
reported_rows = (8, 64, 1 / 8)


class Trainer:
    def __init__(self, options, ranks):
        self.options = options
        self.ranks = ranks
        self.model = None
        self.updates = None
        self._digest = None
        self._reference = None

    def open(self, folder, lora, seed):
        self.model = self.updates = self._reference = None  # their memory is needed first
        self.model = self.load(self.ranks.folders.here(folder, base_of), lora, seed)
        self.updates = Updates(self.model.trained(), is_offloaded=self.options.get("optim_cpu_offload", False))
        self._digest = None
        return {"digest": self.digest(), "packs": self.model.packs, "notes": self.model.notes}

    def load(self, folder, lora, seed, is_frozen=False):
        if not os.path.isdir(folder):
            raise Refused("ModelUnsupported", f"{folder} is no folder of a model.")
        model = Model.open(folder, lora, seed, self.options, self.ranks, is_frozen)
        model.packs = keeps_apart(model, self.vocabulary(model), self.ranks.device)
        return model

    @staticmethod
    def vocabulary(model):
        return model.causal.config.get_text_config().vocab_size

    def digest(self):
        if self._digest is None:
            self._digest = self.model.digest(self.ranks)
        return self._digest

    def export(self, folder, base):
        export(self.model, folder, base, self.ranks)

    def save_optimizer(self, folder):
        states.save(folder, self.model, self.updates, self.ranks)

    def restore_optimizer(self, folder, is_verified=False):
        if folder is None:
            self.updates.reset()
        else:
            states.load(self.ranks.folders.here(folder, base_of), self.model, self.updates, self.ranks, is_verified)
            self._digest = None

    def logprobs(self, parts, temperature, target, reference=None):
        rows = self.read(parts)
        numbered = list(enumerate(rows.rows))
        if reference is None:
            values = self.score(self.model, rows, numbered, temperature)
        else:
            values = self.score_reference(reference, rows, numbered, temperature)
        self.write(target, {"logprobs": values})

    def sft_step(self, parts, normalizer, learning_rate, optimizer, micro_rows=None, dropout_seed=0, temperature=None, reference=None, step=0):
        """−Σ w ℓ over the normalizer: also the gradient of any loss, with −∂L/∂ℓ as its weights. ℓ is at temperature 1 unless another is given."""
        rows = self.read(parts)
        counted = rows.counted("mask")
        part = Part(
            "sft",
            list(enumerate(rows.rows)),
            rows.columns["mask"],
            counted,
            rows.columns["token_weights"] if normalizer is not None else rows.columns["mask"],
            None,
            normalizer if normalizer is not None else sum(counted),
            1.0,
            uses_own_temperature=temperature is not None,
        )
        Updates.require(optimizer.get("type", "adamw"))
        told = {} if reference is None else {"klDivergence": self.reported_kl(reference, rows, list(enumerate(rows.rows)), {"step": step, "temperature": temperature})}
        sums = self.accumulate([part], rows, micro_rows, (dropout_seed, 1), None, 1.0 if temperature is None else temperature)[0]
        metrics = {"loss": sums.get("loss", 0.0), **means(sums, ["entropy"], sum(counted)), "tokenCount": sum(counted), **told}
        return self.finish(metrics, optimizer, learning_rate)

    def train_step(self, parts, plan, reference, scores):
        rows = self.read(parts)
        started = time.perf_counter()
        numbered = list(enumerate(rows.rows))
        Updates.require(plan["optimizer"].get("type", "adamw"))
        told = torch.zeros(2, rows.columns["tokens"].numel()) if scores is not None else None
        reported, compared = None, None
        reference_logprobs = None
        if plan["loss"]["type"] == "cross_entropy":
            return self.supervised(rows, parts, plan)
        if plan["klBeta"] > 0:
            reference_logprobs = self.score_reference(reference, rows, numbered, plan["temperature"])
        elif reference is not None and self.sees_policy(plan):
            compared = self.reported_rows(numbered, plan["step"])
            reference_scores = self.score_reference(reference, rows, compared, plan["temperature"])
            told = torch.zeros(2, rows.columns["tokens"].numel()) if told is None else told
        elif reference is not None:
            reported = self.reported_kl(reference, rows, numbered, plan)
        outcome = self.passes(rows, plan, reference_logprobs, told)
        seconds = time.perf_counter() - started
        if told is not None:
            self.ranks.add(told)
        if compared is not None:
            reported = k3_of(told[0], reference_scores, rows, compared)
        if reported is not None:
            outcome["metrics"]["klDivergence"] = reported
        if scores is not None and outcome["applied"]:
            self.write(scores, {"logprobs": told[0], "entropies": told[1]})
        return {**outcome, "digest": self.digest(), "seconds": seconds}

    def supervised(self, rows, parts, plan):
        if plan["klBeta"] != 0 or plan["numIterations"] != 1 or plan["loss"]["aggregation"] != "token":
            raise Refused(
                "Unsupported",
                'The loss "cross_entropy" is one pass over the batch\'s tokens: expected no KL penalty, num_iterations = 1 and aggregation = "token"; '
                f'got {plan["klBeta"]}, {plan["numIterations"]} and "{plan["loss"]["aggregation"]}".',
            )
        if (plan.get("numMiniBatches") or 1) != 1:
            raise Refused("Unsupported", 'The loss "cross_entropy" is one step over the whole batch: expected one mini-batch.')
        outcome = self.sft_step(parts, None, plan["learningRate"], plan["optimizer"], plan["microBatchSize"], plan.get("dropoutSeed", 0))
        return {**outcome, "digest": self.digest()}

    def passes(self, rows, plan, reference_logprobs, told):
        """Each pass over each part is an optimizer step. Where one is refused, none of them was made."""
        parts = mini_batches(rows.rows, plan.get("numMiniBatches") or 1)
        iterations = plan["numIterations"]
        if iterations == 1 and len(parts) == 1:
            return self.one_pass(rows, parts[0], plan, reference_logprobs, told, 1)
        go_back = self.updates.snapshot()
        was_new = self.model.is_adapter_new
        applied, flat = [], None
        for number in range(iterations * len(parts)):
            iteration, place = divmod(number, len(parts))
            result = self.one_pass(rows, parts[place], plan, reference_logprobs, told if iteration == 0 else None, number + 1)
            if result["applied"]:
                applied.append(result["metrics"])
            elif len(parts) > 1 and is_flat(result["metrics"]):
                flat = result  # nothing in this part says which way to go
            else:
                go_back()
                self.model.is_adapter_new = was_new
                self._digest = None
                where = "" if len(parts) == 1 else f", in part {place + 1} of {len(parts)}"
                return {**result, "reason": f"{result['reason']}, in pass {iteration + 1} of {iterations}{where}"}
        if not applied:
            return flat
        return {"applied": True, "metrics": mean_of_passes(applied)}

    def one_pass(self, rows, numbered, plan, reference_logprobs, told, number):
        parts = self.parts_of_loss(rows, numbered, plan, reference_logprobs)
        sums = self.accumulate(parts, rows, plan["microBatchSize"], (plan.get("dropoutSeed", 0), number), told, plan["temperature"], reference_logprobs)
        return self.finish(metrics_of(parts, sums), plan["optimizer"], plan["learningRate"])

    def parts_of_loss(self, rows, numbered, plan, reference_logprobs):
        """
        The plan's policy loss (rl), the distance to a teacher (ref_kl) and the cross entropy of what environments said (ce), each over the number of its own
        tokens: engine/train/parts-of-loss.ts.
        """
        plain = [row for _, row in numbered]
        mask = rows.columns["mask"]
        counted = [float(mask[row.start : row.start + row.length].sum()) for row in plain]
        observed = rows.columns.get("observed")
        seen = [0] * len(plain) if observed is None else [int(observed[row.start : row.start + row.length].count_nonzero()) for row in plain]
        has_several = any(row.distilled for row in plain) or any(seen)

        def policy(name, settings, is_of, kl_beta):
            own = [count if is_of(row) else 0.0 for count, row in zip(counted, plain)]
            factors, normalizer = aggregation_of(plain, own, settings)
            entropy = settings.get("entropyCoef") or 0.0
            loss = PolicyLoss(settings, kl_beta, entropy / sum(own) if entropy and sum(own) else 0.0)
            return Part(name, numbered, mask, own, mask, factors, normalizer, loss)

        if not has_several:
            return [policy("rl", plan["loss"], lambda row: True, plan["klBeta"])]
        parts = []
        if any(count > 0 and not row.distilled for count, row in zip(counted, plain)):
            parts.append(policy("rl", plan["loss"], lambda row: not row.distilled, plan["klBeta"]))
        if any(count > 0 and row.distilled for count, row in zip(counted, plain)):
            if plan.get("distillation") is None:
                raise Refused("Unsupported", "Rows of the batch are learned from a teacher alone: expected the loss of distillation beside that of the plan, got none.")
            parts.append(policy("ref_kl", plan["distillation"], lambda row: row.distilled, 0.0))
        if any(seen):
            parts.append(Part("ce", numbered, (observed != 0).float(), seen, observed, None, sum(seen), 1.0))
        return parts

    def accumulate(self, parts, rows, micro_rows, dropout, told, temperature=1.0, reference_logprobs=None):
        """Adds up the gradients of all parts, and returns the sums of each. FSDP averages over ranks, so each rank's loss counts as many times."""
        model, ranks = self.model, self.ranks
        model.causal.train()
        self.updates.forget_gradients()
        work, all_sums = [], []
        for part in parts:
            micros = self.cut(model, part.rows, part.counted, micro_rows)
            rounds = math.ceil(len(micros) / ranks.world)
            all_sums.append(Sums())
            # Every rank computes as many: where a rank has none left it computes one whose loss counts nothing.
            for i in range(rounds):
                place = i * ranks.world + ranks.rank
                is_real = place < len(micros)
                work.append((part, all_sums[-1], place, micros[place if is_real else 0], is_real))
        for i, (part, sums, place, micro, is_real) in enumerate(work):
            torch.manual_seed(hash_of(dropout, part.name, place))
            loss, own = self.loss_of(part, micro, rows, temperature, reference_logprobs, told if is_real else None)
            is_last = i == len(work) - 1
            if model.has_adapter and model.is_shared:
                model.causal.set_requires_gradient_sync(is_last)
            (loss * (ranks.world if is_real else 0.0)).backward()
            if is_real:
                sums.add(own)
            ranks.progress()
        return [sums.over(ranks) for sums in all_sums]

    def loss_of(self, part, micro, rows, temperature, reference_logprobs, told):
        device = self.ranks.device
        packed = pack(micro, rows.columns, part.mask, device)
        inverse = self.inverse_temperatures(packed, rows, temperature, part.uses_own_temperature)
        logprobs, entropies = self.model.causal.token_logprobs(packed.input_ids, packed.position_ids, packed.selected, packed.targets, inverse)
        if told is not None and part.name != "ce":
            told[0][packed.source] = logprobs.detach().cpu()
            told[1][packed.source] = entropies.detach().cpu()
        of = lambda column: column[packed.source].float().to(device)
        places = {place: i for i, (place, _) in enumerate(part.rows)}
        weights = of(part.weights)
        if part.factors is not None:
            weights = weights * torch.tensor([part.factors[places[place]] for place in packed.rows], device=device)[packed.row_of]
        mask = of(part.mask)
        columns = rows.columns
        if not isinstance(part.loss, PolicyLoss):
            tokens = Tokens(logprobs, entropies, None, None, None, mask, weights, packed.row_of, len(micro))
            return supervised_loss(tokens, 1 / part.normalizer)
        tokens = Tokens(
            logprobs,
            entropies,
            of(columns["behavior"]),
            of(columns.get("sampled", columns["behavior"])),
            of(columns["advantages"]),
            mask,
            weights,
            packed.row_of,
            len(micro),
            teacher_logprobs=of(columns["teacher_logprobs"]) if "teacher_logprobs" in columns else None,
            teacher_weights=of(columns["teacher_weights"]) if "teacher_weights" in columns else None,
            reference=of(reference_logprobs) if reference_logprobs is not None and part.name == "rl" else None,
        )
        return part.loss.of(tokens, 1 / part.normalizer)

    def finish(self, metrics, optimizer, learning_rate):
        """Takes the step, unless something about it is no number or points nowhere: then nothing has changed."""
        metrics["gradNorm"] = self.updates.norm() if metrics["tokenCount"] > 0 else 0.0
        reason = refusal_reason(metrics)
        if reason is not None:
            self.updates.forget_gradients()
            return {"applied": False, "reason": reason, "metrics": numbers(metrics)}
        self.updates.apply(optimizer, learning_rate, metrics["gradNorm"])
        self.updates.forget_gradients()
        self.model.is_adapter_new = False
        self._digest = None
        return {"applied": True, "metrics": metrics}

    def score(self, model, rows, numbered, temperature):
        """log softmax(logits / temperature) of every token that counts, 0 elsewhere: on all ranks, in one vector."""
        mask = rows.columns["mask"]
        found = torch.zeros(rows.columns["tokens"].numel())
        counted = [float(mask[row.start : row.start + row.length].sum()) for _, row in numbered]
        micros = self.cut(model, numbered, counted, None)
        model.causal.eval()
        for i in range(math.ceil(len(micros) / self.ranks.world)):
            place = i * self.ranks.world + self.ranks.rank
            packed = pack(micros[place if place < len(micros) else 0], rows.columns, mask, self.ranks.device)
            inverse = self.inverse_temperatures(packed, rows, temperature, True)
            logprobs = model.scored(packed.input_ids, packed.position_ids, packed.selected, packed.targets, inverse)
            if place < len(micros):
                found[packed.source] = logprobs.cpu()
            self.ranks.progress()
        return self.ranks.add(found)

    def inverse_temperatures(self, packed, rows, temperature, uses_own):
        own = rows.columns.get("temperature") if uses_own else None
        values = torch.full(packed.targets.shape, float(temperature))
        if own is not None:
            told = own[packed.source].float()
            values = torch.where(torch.isnan(told), values, told)
        return (1 / values).to(self.ranks.device)

    def score_reference(self, folder, rows, numbered, temperature):
        """Scores by a reference policy. The base of adapters is the model itself without them; any other reference is a second model, kept until another is asked for."""
        own_base = self.model.base_folder
        is_own_base = self.model.has_adapter and base_of(folder) is None and os.path.realpath(folder) == os.path.realpath(own_base)
        if self.ranks.share(is_own_base):
            with self.model.without_adapter():
                return self.score(self.model, rows, numbered, temperature)
        if self._reference is None or self._reference[0] != folder:
            self._reference = None
            there = self.ranks.folders.here(folder, base_of)
            model = self.load(there, adapter_settings(there), 0, is_frozen=True)
            for _, parameter in model.named():
                parameter.requires_grad_(False)
            self._reference = folder, model
        return self.score(self._reference[1], rows, numbered, temperature)

    def reported_kl(self, folder, rows, numbered, plan):
        """k3 between the policy and the reference over a part of the rows, which moves with the step."""
        some = self.reported_rows(numbered, plan["step"])
        current = self.score(self.model, rows, some, plan["temperature"])
        return k3_of(current, self.score_reference(folder, rows, some, plan["temperature"]), rows, some)

    @staticmethod
    def reported_rows(numbered, step):
        least, most, share = reported_rows
        count = len(numbered)
        size = min(count, max(least, min(most, math.ceil(count * share))))
        first = min((step % math.ceil(count / size)) * size, count - size) if count else 0
        return numbered[first : first + size]

    def sees_policy(self, plan):
        """Whether the step itself computes log probabilities of the policy that it begins with: not behind the first of several updates, or with dropout."""
        return plan["numIterations"] == 1 and (plan.get("numMiniBatches") or 1) == 1 and not self.model.drops

    def cut(self, model, numbered, counted, micro_rows):
        rows_max = micro_rows or rows_usual
        return cut(numbered, counted, rows_max if model.packs else 1, self.options.get("micro_tokens") or 0)

    def read(self, parts):
        rows = Rows.read(parts, self.ranks)
        size = self.vocabulary(self.model)
        tokens = rows.columns["tokens"]
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < size:
            raise Refused("Unsupported", f"The training batch is malformed: expected token ids below {size}, got {int(tokens.min())} to {int(tokens.max())}.")
        positions = getattr(self.model.causal.config.get_text_config(), "max_position_embeddings", None)
        longest = max((row.length for row in rows.rows), default=0)
        if positions is not None and longest - 1 > positions:
            raise Refused("Unsupported", f"The training batch is malformed: expected at most {positions + 1} tokens in a row, got {longest}.")
        return rows

    def write(self, target, tensors):
        if self.ranks.is_first:
            save_file({name: tensor.float().contiguous() for name, tensor in tensors.items()}, target)


class Part:
    """One of the losses that a batch is learned by. `rows` are (place, row); `counted` and `factors` are aligned with them."""

    def __init__(self, name, rows, mask, counted, weights, factors, normalizer, loss, uses_own_temperature=True):
        self.name, self.rows, self.mask, self.counted = name, rows, mask, counted
        self.weights, self.factors, self.normalizer, self.loss = weights, factors, normalizer, loss
        self.uses_own_temperature = uses_own_temperature


class Sums:
    """Sums over tokens, but for one maximum."""

    largest = "maxLogprobDifference"

    def __init__(self):
        self.values = {}

    def add(self, more):
        for name, value in more.items():
            number, before = float(value), self.values.get(name, 0.0)
            self.values[name] = larger_or_nan(before, number) if name == self.largest else before + number

    def over(self, ranks):
        every = ranks.gather(self.values)
        total = Sums()
        for own in every:
            total.add(own)
        return total.values


def metrics_of(parts, sums):
    """Losses add up, and means are over the tokens that the policy sampled, whatever they are learned by: engine/train/step-metrics.ts."""
    total = Sums()
    counts = {part.name: sum(part.counted) for part in parts}
    for part, own in zip(parts, sums):
        total.add({"loss": own.get("loss", 0.0)} if part.name == "ce" else own)
    sampled = sum(count for name, count in counts.items() if name != "ce")
    names = ["entropy", "mismatchKl", "clipFractionLow", "clipFractionHigh", "ratioMean"]
    values = total.values
    metrics = {
        "loss": values.get("loss", 0.0),
        **means(values, names, sampled),
        "maxLogprobDifference": values.get("maxLogprobDifference", 0.0),
        "tokenCount": sampled + counts.get("ce", 0),
    }
    metrics["clipFraction"] = metrics["clipFractionLow"] + metrics["clipFractionHigh"]
    if "klDivergence" in values:
        metrics.update(means(values, ["klDivergence"], sampled))
    by_name = {part.name: own for part, own in zip(parts, sums)}
    if "ce" in by_name:
        metrics["nll"] = by_name["ce"]["nll"] / counts["ce"]
    if "ref_kl" in by_name:
        own = by_name["ref_kl"]
        metrics["refKlMasked"] = (own["clipFractionLow"] + own["clipFractionHigh"]) / counts["ref_kl"]
    return metrics


def k3_of(current, reference, rows, some):
    """k3 between two policies over the tokens of some rows that count."""
    chosen = torch.zeros_like(current, dtype=torch.bool)
    for _, row in some:
        chosen[row.start : row.start + row.length] = True
    chosen &= rows.columns["mask"] != 0
    if not bool(chosen.any()):
        return 0.0
    difference = (reference - current)[chosen].double()
    return float((torch.exp(difference) - difference - 1).mean())


def mean_of_passes(passes):
    """Means over the passes of a step; the gradient's norm and the number of tokens are those of the last one."""
    last = passes[-1]
    names = {name for metrics in passes for name in metrics}
    told = {name: [metrics[name] for metrics in passes if name in metrics] for name in names}
    return {**{name: sum(values) / len(values) for name, values in told.items()}, "gradNorm": last["gradNorm"], "tokenCount": last["tokenCount"]}


def means(sums, names, total):
    return {name: sums.get(name, 0.0) / total if total else 0.0 for name in names}


def larger_or_nan(a, b):
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


def hash_of(dropout, name, place):
    """Keys the dropout masks of adapters, the same on whichever rank a micro-batch is computed."""
    seed, number = dropout
    value = 0
    for one in (seed, number, len(name), place):
        value = (value * 1_000_003 + one + 1) % (1 << 63)
    return value


def adapter_settings(folder):
    """The LoRA settings of an adapter's folder; None where it holds a model."""
    if base_of(folder) is None:
        return None
    import peft

    config = peft.LoraConfig.from_pretrained(folder)
    targets = config.target_modules
    return {
        "r": config.r,
        "alpha": config.lora_alpha,
        "dropout": 0.0,
        "rankStabilized": config.use_rslora,
        "targetModules": targets if isinstance(targets, str) else sorted(targets),
        "modulesToSave": config.modules_to_save,
    }
