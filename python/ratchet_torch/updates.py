"""How weights move along a gradient: PyTorch's optimizers, and what they remember."""

import torch

from .wire import Refused

epsilon_of_clip = 1e-6

# Defaults of prime-rl (configs/trainer.py, SGDConfig).
usual_momentum, usual_nesterov = 0.9, True

# State of each weight, by the names of torch.optim.
remembered = {"adamw": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",), "sign_sgd": ()}


class SignSgd(torch.optim.Optimizer):
    """Steps of one length along the sign of the gradient, with decoupled decay (Bernstein et al. 2018). It remembers nothing."""

    def __init__(self, groups):
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                weight.mul_(1 - group["lr"] * group["weight_decay"]).sub_(torch.sign(weight.grad), alpha=group["lr"])


class Updates:
    """The optimizer of a model. Which one it is, every step says; a run keeps the one that it began with."""

    def __init__(self, named):
        self.named = list(named)
        self.type = None
        self.step = 0
        self._optimizer = None

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
        for group in self._optimizer.param_groups:
            is_spared = group["is_vector"] and settings.get("decayMatricesOnly") is True
            group["lr"] = learning_rate
            group["weight_decay"] = 0.0 if is_spared else settings["weightDecay"]
            if kind == "adamw":
                group.update(betas=(settings["beta1"], settings["beta2"]), eps=settings["epsilon"])
            if kind == "sgd":
                group.update(momentum=settings.get("momentum", usual_momentum), nesterov=settings.get("nesterov", usual_nesterov))
        self._optimizer.step()
        self.step += 1

    @staticmethod
    def require(kind):
        if kind not in remembered:
            raise Refused("Unsupported", f'The trainer "torch" has no optimizer "{kind}": expected one of {", ".join(remembered)}.')

    def make(self, kind):
        if self._optimizer is not None:
            return
        groups = [
            {"params": [p for p in self.parameters if (p.dim() == 1) == is_vector], "is_vector": is_vector}
            for is_vector in (False, True)
        ]
        groups = [group for group in groups if group["params"]]
        if kind == "adamw":
            self._optimizer = torch.optim.AdamW(groups, lr=0.0)
        elif kind == "sgd":
            self._optimizer = torch.optim.SGD(groups, lr=0.0, momentum=usual_momentum, nesterov=True)
        else:
            self._optimizer = SignSgd(groups)
        self.type = kind

    def forget_gradients(self):
        for parameter in self.parameters:
            parameter.grad = None

    def reset(self):
        self.type, self.step, self._optimizer = None, 0, None
        self.forget_gradients()

    def state(self):
        """The state of each weight, by name, in shards as the weights are; the tensors themselves."""
        if self.type is None:
            return {}
        found = self._optimizer.state
        return {name: {key: found[p][key] for key in remembered[self.type]} for name, p in self.named}

    def like(self, kind):
        """Room for such a state."""
        return {name: {key: torch.zeros_like(p.detach()) for key in remembered[kind]} for name, p in self.named}

    def restore(self, kind, step, state):
        self.reset()
        self.make(kind)
        self.step = step
        for name, parameter in self.named:
            own = dict(state[name])
            if kind == "adamw":
                own["step"] = torch.tensor(float(step))
            if own:
                self._optimizer.state[parameter] = own

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
