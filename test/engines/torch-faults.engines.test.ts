/** PyTorch's ranks when one of them, their launcher or their worker dies or stops; `npm run test:engines`. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { batchOf } from '../../core/rl/learning/batch.ts';
import { trainerFailure } from '../../core/rl/engine-failures.ts';
import { lossOf, planOf, rowsOf, temporaryFolder, writePreset } from '../../backends/testing/material.ts';
import { TorchTrainer } from '../../backends/trainer/torch.ts';
import { startTrainerWorker, untilGone } from './started-trainer-worker.ts';
import { ensureTorch } from './torch-cpu.ts';

const found = await ensureTorch();
const skip = 'missing' in found ? `no PyTorch here: ${found.missing}` : false;
const python = 'python' in found ? found.python : '';
const allWeights = { lora: null, seed: 1 };
const plan = planOf({ loss: lossOf('grpo') });

type Options = Omit<ConstructorParameters<typeof TorchTrainer>[0], 'python' | 'threads'>;

async function opened(t: TestContext, options: Options) {
  const root = await temporaryFolder(t);
  const model = await writePreset(path.join(root, 'step_0'));
  const trainer = new TorchTrainer({ python, threads: 1, ...options });
  t.after(() => trainer.close());
  const { digest } = await trainer.open(model, allWeights);
  const step = { plan, batch: batchOf(await rowsOf(model)), referenceFolder: model };
  return { trainer, model, digest, step, pids: await trainer.pids() };
}

function parentOf(pid: number): number {
  return Number(readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]!.split(' ')[1]);
}

describe('PyTorch’s ranks', { skip }, () => {
  test('are ended when one of them is stopped, within the time that is set, and the step is repeated', async (t) => {
    const { trainer, model, step, pids } = await opened(t, { ranks: 2, timeout_s: 4 });
    process.kill(pids[1]!, 'SIGSTOP');
    const startedAt = performance.now();
    await assert.rejects(trainer.trainStep(step), {
      code: 'EngineDied',
      message: /Rank 1 was stopped \(SIGSTOP\)\.$/,
    });
    const seconds = (performance.now() - startedAt) / 1000;
    assert.ok(seconds < 12, `it took ${seconds} s`);
    for (const pid of pids) await untilGone(pid);
    await trainer.open(model, allWeights);
    assert.equal((await trainer.trainStep(step)).applied, true);
  });

  test('are ended when the only one of them is stopped', async (t) => {
    const { trainer, step, pids } = await opened(t, { ranks: 1, timeout_s: 1 });
    process.kill(pids[0]!, 'SIGSTOP');
    await assert.rejects(trainer.trainStep(step), {
      code: 'EngineDied',
      message: /gave no sign for 11 s \(train_step\)/,
    });
    await untilGone(pids[0]!);
  });

  test('say that memory ran out, by which the step is planned with fewer rows', async (t) => {
    const { trainer, model, step, pids } = await opened(t, { ranks: 2, micro_tokens: 1e6 });
    await trainer.trainStep(step); // its threads are there
    const held = /^VmSize:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pids[1]}/status`, 'utf8'));
    // It keeps all that it has, and gets next to nothing more: one micro-batch of all rows asks for much.
    execFileSync('prlimit', ['--pid', String(pids[1]), `--as=${Number(held![1]) * 1024 + 32e6}`]);
    const batch = batchOf(await rowsOf(model, { count: 1500 }));
    await assert.rejects(
      trainer.trainStep({ ...step, batch, plan: { ...plan, microBatchSize: 1500 } }).catch((error: unknown) => {
        throw trainerFailure(error);
      }),
      { code: 'OutOfMemory', message: /out of memory/ },
    );
    for (const pid of pids) await untilGone(pid);
    await trainer.open(model, allWeights);
    assert.equal((await trainer.trainStep({ ...step, plan: { ...plan, microBatchSize: 6 } })).applied, true);
  });

  test('are started by torchrun as well, to the same bits, and none is left when one is killed', async (t) => {
    const own = await opened(t, { ranks: 2 });
    const { digest } = await own.trainer.trainStep(own.step);
    await own.trainer.close();
    const { trainer, step, pids } = await opened(t, { ranks: 2, launcher: 'torchrun' });
    assert.equal((await trainer.trainStep(step)).digest, digest);
    process.kill(pids[1]!, 'SIGKILL');
    await assert.rejects(trainer.trainStep(step), {
      code: 'EngineDied',
      message: /^Rank 1 of 2 was killed, or crashed/,
    });
    for (const pid of pids) await untilGone(pid);
  });

  for (const launcher of ['ratchet', 'torchrun'] as const) {
    test(`do not outlive their worker, or what started them (${launcher}), even when they are stopped`, async (t) => {
      const root = await temporaryFolder(t);
      const model = await writePreset(path.join(root, 'step_0'));
      for (const killed of ['worker', 'launcher']) {
        const worker = startTrainerWorker(t, { python, model, options: { ranks: 2, launcher } });
        await worker.do('open', model);
        const pids = await worker.do<number[]>('pids');
        const parent = parentOf(pids[1]!);
        process.kill(pids[1]!, 'SIGSTOP');
        if (killed === 'worker') worker.kill();
        else process.kill(parent, 'SIGKILL');
        for (const pid of [...pids, parent]) await untilGone(pid);
        if (killed === 'launcher') await assert.rejects(worker.do('step', '1'), { code: 'EngineDied' });
        worker.kill();
      }
    });
  }
});
