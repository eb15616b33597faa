import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { setTimeout } from 'node:timers/promises';
import { EngineOptimizer, TrainerProcess, type TrainOptions } from '../../engine/index.ts';
import { optimizer, randomBatch, temporaryFolder } from './models.ts';

const presetName = 'preset:reverse-text-0.2m';
const options: TrainOptions = {
  learningRate: 1e-3,
  optimizer,
  loss: { type: 'cispo', clipHigh: 3, aggregation: 'token' },
  temperature: 0.9,
  klBeta: 0,
};

test('a trainer in its own process gives the bits of one in this process', async (t) => {
  const folder = await temporaryFolder(t);
  const near = await EngineOptimizer.open(presetName, { threads: 1, seed: 5 });
  const far = await TrainerProcess.open(presetName, { threads: 1, seed: 5 });
  t.after(() => far.close());
  const samples = randomBatch(near.model.config, 12, 1);
  assert.deepEqual(await far.trainStep(samples, options), await near.trainStep(samples, options));
  assert.deepEqual(
    await far.sftStep(samples, { learningRate: 1e-3, optimizer }),
    await near.sftStep(samples, { learningRate: 1e-3, optimizer }),
  );
  assert.deepEqual(await far.forwardLogprobs(samples, options), await near.forwardLogprobs(samples, options));
  assert.equal(await far.exportWeights(folder), await near.digest());
  const state = await far.saveState();
  assert.deepEqual(Buffer.from(state), Buffer.from(await near.saveState()));
  await far.resetMoments();
  await far.restoreState(state);
  assert.equal(await far.loadWeights(folder), await far.digest());
  await near.close();
});

test('when the process is killed, every call fails with EngineDied and nothing restarts by itself', async () => {
  const trainer = await TrainerProcess.open(presetName, { threads: 1 });
  process.kill(trainer.pid!, 'SIGSTOP'); // so that none of the calls is answered before the process ends
  const calls = [trainer.digest(), trainer.saveState(), trainer.resetMoments()];
  process.kill(trainer.pid!, 'SIGKILL');
  const outcomes = await Promise.allSettled(calls);
  for (const outcome of outcomes) {
    assert.ok(outcome.status === 'rejected' && (outcome.reason as { code: string }).code === 'EngineDied');
  }
  assert.equal(trainer.isAlive, false);
  await assert.rejects(trainer.digest(), { code: 'EngineDied', isRetryable: true });
  await trainer.close();
});

test('a refusal keeps its code across the process boundary and the trainer continues', async (t) => {
  await assert.rejects(TrainerProcess.open('/nowhere', { threads: 1 }), {
    code: 'ModelUnsupported',
    message: /config\.json/,
  });
  const trainer = await TrainerProcess.open(presetName, { threads: 1 });
  t.after(() => trainer.close());
  await assert.rejects(trainer.restoreState(new Uint8Array(4)), { code: 'CheckpointDamaged' });
  assert.match(await trainer.digest(), /^[0-9a-f]{64}$/);
});

test('a closed trainer ends its process and refuses further calls', async () => {
  const trainer = await TrainerProcess.open(presetName, { threads: 1 });
  const { pid } = trainer;
  await trainer.close();
  assert.throws(() => process.kill(pid!, 0), { code: 'ESRCH' });
  await assert.rejects(trainer.digest(), { code: 'EngineDied' });
});

test('a trainer does not outlive an owner that was killed', async (t) => {
  const script = join(await temporaryFolder(t), 'owner.mts');
  const engine = JSON.stringify(new URL('../../engine/index.ts', import.meta.url).href);
  await writeFile(
    script,
    `import { TrainerProcess } from ${engine};
     const trainer = await TrainerProcess.open('${presetName}', { threads: 1 });
     process.send(trainer.pid);
     setInterval(() => {}, 1000);`,
  );
  const owner = fork(script, [], { execArgv: ['--import', import.meta.resolve('tsx')] });
  const [pid] = (await once(owner, 'message')) as [number];
  owner.kill('SIGKILL');
  for (let waitedMs = 0; isRunning(pid); waitedMs += 20) {
    assert.ok(waitedMs < 5000, 'the trainer is still there after 5 seconds');
    await setTimeout(20);
  }
});

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
