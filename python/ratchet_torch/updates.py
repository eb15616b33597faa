"""How weights move along a gradient: PyTorch's optimizers, and what they remember."""

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from .wire import Refused

epsilon_of_clip = 1e-6

# Defaults of prime-rl (configs/trainer.py, SGDConfig).
usual_momentum, usual_nesterov = 0.9, True
usual_muon_momentum = 0.95

# State of each weight, by the names of torch.optim.
remembered = {"adamw": ("exp_avg", "exp_avg_sq"), "muon": ("momentum_buffer", "exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",), "sign_sgd": ()}


class SignSgd(torch.optim.Optimizer):
    """Steps of one length along the sign of the gradient, with decoupled decay (Bernstein et al. 2018). It remembers nothing."""

    def __init__(self, groups):
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                weight.mul_(1 - group["lr"] * group["weight_decay"]).sub_(torch.sign(weight.grad), alpha=group["lr"])


class Muon(torch.optim.Optimizer):
    """
    A matrix moves along its momentum, made orthogonal (Jordan et al. 2024), with the step length of AdamW: engine/train/updates/muon.ts has the same numbers, and
    the sources of them. Experts of one layer are as many matrices. A matrix in shards is whole on every rank for its turn.
    """

    newton_schulz = ((4.0848, -6.8946, 2.927), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012))
    step_length = 0.2

    def __init__(self, groups):
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0, "momentum": usual_muon_momentum, "eps": 1e-8})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight, halves in zip(group["params"], group["halves"]):
                buffer = self.state[weight].setdefault("momentum_buffer", torch.zeros_like(weight))
                buffer.mul_(group["momentum"]).add_(weight.grad)
                whole = buffer.full_tensor() if isinstance(buffer, DTensor) else buffer
                matrices = whole.reshape(-1, whole.shape[-2] // halves, whole.shape[-1])
                rate = group["lr"] * self.step_length * max(matrices.shape[1:]) ** 0.5
                moved = (self.orthogonal(matrices.bfloat16(), group["eps"]) * rate).to(weight.dtype).view(whole.shape)
                if isinstance(weight, DTensor):
                    moved = distribute_tensor(moved, weight.device_mesh, weight.placements, src_data_rank=None)
                weight.mul_(1 - group["lr"] * group["weight_decay"]).sub_(moved)

    def orthogonal(self, given, epsilon):
        """Roughly the nearest matrices with orthonormal rows, or columns where those are fewer."""
        is_tall = given.shape[-2] > given.shape[-1]
        x = given.mT if is_tall else given
        norm = x.float().square().sum((-2, -1), keepdim=True).sqrt().bfloat16()
        x = x / (norm + epsilon)
        for a, b, c in self.newton_schulz:
            square = x @ x.mT
            factor = square * b + square @ square * c
            x = x * a + factor @ x
        return x.mT if is_tall else x


def is_matrix(name, parameter):
    """prime-rl's rule for Muon."""
    return parameter.dim() >= 2 and "lm_head" not in name and "embed_tokens" not in name


class Updates:
    """The optimizer of a model. Which one it is, every step says; a run keeps the one that it began with."""

    def __init__(self, named, is_offloaded=False):
        self.named = list(named)
        self.type = None
        self.step = 0
        self.is_offloaded = is_offloaded
        self._optimizers = []

    @property
    def parameters(self):
        return [parameter for _, parameter in self.named]

    def norm(self):
        """The global L2 norm of the gradient over all ranks."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        total = torch.nn.utils.get_total_norm(gradients)
        return float(total.full_tensor() if hasattr(total, "full_tensor") else total)

    def apply(self, settings, learning_rate, norm):
        kind = settings.get("type", "adamw")
        if self.type is not None and kind != self.type:
            raise Refused("CheckpointDamaged", f"The optimizer state is of {self.type}, and the step is one of {kind}. A run keeps the optimizer that it began with.")
        self.require(kind)
        self.make(kind)
        scale = min(1.0, settings["maxGradNorm"] / (norm + epsilon_of_clip))
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            elif scale < 1.0:
                parameter.grad.mul_(scale)
        self.bring_state(home=False)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                is_spared = group["is_vector"] and settings.get("decayMatricesOnly") is True
                group["lr"] = learning_rate
                group["weight_decay"] = 0.0 if is_spared else settings["weightDecay"]
                if isinstance(optimizer, torch.optim.AdamW):
                    group.update(betas=(settings["beta1"], settings["beta2"]), eps=settings["epsilon"])
                elif kind == "muon":
                    group.update(momentum=settings.get("momentum", usual_muon_momentum), eps=settings["epsilon"])
                elif kind == "sgd":
                    group.update(momentum=settings.get("momentum", usual_momentum), nesterov=settings.get("nesterov", usual_nesterov))
            optimizer.step()
        self.bring_state(home=True)
        self.step += 1

    def bring_state(self, home):
        """Offloaded moments are in the memory of the CPU, and beside their weights only for the step."""
        if not self.is_offloaded:
            return
        for optimizer in self._optimizers:
            for parameter, values in optimizer.state.items():
                for key in remembered[self.type]:
                    if key in values:
                        held, device = values[key], "cpu" if home else local(parameter).device
                        if hasattr(held, "to_local"):
                            held._local_tensor = held._local_tensor.to(device)
                        else:
                            values[key] = held.to(device)

    @staticmethod
    def require(kind):
        if kind not in remembered:
            raise Refused("Unsupported", f'The trainer "torch" has no optimizer "{kind}": expected one of {", ".join(remembered)}.')

    def make(self, kind):
        if self._optimizers:
            return
        of_muon = [(name, p) for name, p in self.named if kind == "muon" and is_matrix(name, p)]
        others = [p for name, p in self.named if not (kind == "muon" and is_matrix(name, p))]
        groups = [{"params": [p for p in others if (p.dim() == 1) == is_vector], "is_vector": is_vector} for is_vector in (False, True)]
        groups = [group for group in groups if group["params"]]
        if of_muon:
            halves = [2 if name.endswith("gate_up_proj") and p.dim() == 3 else 1 for name, p in of_muon]
            self._optimizers.append(Muon([{"params": [p for _, p in of_muon], "halves": halves, "is_vector": False}]))
        if groups and kind in ("adamw", "muon"):
            self._optimizers.append(torch.optim.AdamW(groups, lr=0.0))
        elif groups and kind == "sgd":
            self._optimizers.append(torch.optim.SGD(groups, lr=0.0, momentum=usual_momentum, nesterov=True))
        elif groups:
            self._optimizers.append(SignSgd(groups))
        self.type = kind

    def forget_gradients(self):
        for parameter in self.parameters:
            parameter.grad = None

    def reset(self):
        self.type, self.step, self._optimizers = None, 0, []
        self.forget_gradients()

    def state(self):
        """The state of each weight, by name, in shards as the weights are; the tensors themselves."""
        if self.type is None:
            return {}
        found = {p: values for optimizer in self._optimizers for p, values in optimizer.state.items()}
        return {name: {key: found[p][key] for key in self.keys(self.type, name, p)} for name, p in self.named}

    @staticmethod
    def keys(kind, name, parameter):
        if kind != "muon":
            return remembered[kind]
        return ("momentum_buffer",) if is_matrix(name, parameter) else ("exp_avg", "exp_avg_sq")

    def like(self, kind):
        """Room for such a state."""
        return {name: {key: torch.zeros_like(p.detach()) for key in self.keys(kind, name, p)} for name, p in self.named}

    def restore(self, kind, step, state):
        self.reset()
        self.make(kind)
        self.step = step
        owner = {p: optimizer for optimizer in self._optimizers for group in optimizer.param_groups for p in group["params"]}
        for name, parameter in self.named:
            own = dict(state[name])
            if "exp_avg" in own:
                own["step"] = torch.tensor(float(step))
            if own:
                owner[parameter].state[parameter] = own
        self.bring_state(home=True)

    def snapshot(self):
        """Brings weights and optimizer back to where they are now."""
        weights = [local(parameter.detach()).clone() for parameter in self.parameters]
        kept = None
        if self.type is not None:
            kept = self.type, self.step, {name: {key: value.clone() for key, value in values.items()} for name, values in self.state().items()}

        def go_back():
            with torch.no_grad():
                for parameter, weight in zip(self.parameters, weights):
                    local(parameter.detach()).copy_(weight)
            if kept is None:
                self.reset()
            else:
                self.restore(*kept)

        return go_back


def local(tensor):
    """The shard of this rank."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
