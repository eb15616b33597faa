"""Places in a step at which a test may kill prime-rl's trainer: a process that comes to one waits there, once, where a file of its name is in the folder
RATCHET_PRIME_RL_PAUSES. The file is then called NAME.reached.

    backward     gradients of the first micro-batch are there
    update       the optimizer has changed the weights
    weights      the broadcast's files are written, its marker is not
    marker       the marker is there, the row of metrics is not (v0.4.0 tells its figures before)
    checkpoint   a checkpoint's shards are written, its metadata are not
"""

import os
import time


def after_import(folder):
    """Hooks by the module that they are hung into."""

    def pause(name):
        place = os.path.join(folder, name)
        try:
            os.rename(place, f"{place}.reached")
        except FileNotFoundError:
            return
        time.sleep(600)

    def after(method, name):
        def called(*args, **kwargs):
            result = method(*args, **kwargs)
            pause(name)
            return result

        return called

    def before(method, name):
        def called(*args, **kwargs):
            pause(name)
            return method(*args, **kwargs)

        return called

    def in_broadcast(module):
        of = module.FileSystemWeightBroadcast
        of._notify_orchestrator = after(before(of._notify_orchestrator, "weights"), "marker")

    def in_checkpoint(module):
        of = module._FileSystemWriter
        of.finish = before(of.finish, "checkpoint")

    def in_step(torch):
        torch.Tensor.backward = after(torch.Tensor.backward, "backward")

    def in_optimizer(module):
        module.register_optimizer_step_post_hook(lambda *_: pause("update"))

    return {
        "prime_rl.transports.weights.filesystem": in_broadcast,
        "prime_rl.trainer.rl.broadcast.filesystem": in_broadcast,  # of v0.4.0
        "torch.distributed.checkpoint.filesystem": in_checkpoint,
        "torch": in_step,
        "torch.optim.optimizer": in_optimizer,
    }
