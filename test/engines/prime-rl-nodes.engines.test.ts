/** prime-rl's own trainer on two nodes: network namespaces of this machine, whose processes do not see one another. `npm run test:engines`, as root. */
import assert from 'node:assert/strict';
import { mkdir } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import { processesIn } from '../../backends/prime-rl/processes.mjs';
import { temporaryFolder, writePreset } from '../../backends/testing/material.ts';
import { until } from '../eventually.ts';
import { addressOf, alone, mayNotNamespace, namespaces, nodeAt, port, projectWithSecret } from './namespaces.ts';
import { type PrimeRl, primeRl, writePython } from './prime-rl/installations.ts';
import { settingsOnCpu } from './prime-rl/trainer.ts';
import { startTrainerWorker, type TrainerWorker } from './started-trainer-worker.ts';

const found = primeRl('head');
const skip = 'missing' in found ? found.missing : mayNotNamespace();

/** Weights after two steps, the second of which makes a checkpoint. */
async function twoSteps(worker: TrainerWorker, model: string): Promise<string> {
  await worker.do('open', model);
  await worker.do('step', '1');
  return (await worker.do<{ digest: string }>('step', '2')).digest;
}

test(
  'prime-rl’s trainer has the same bits on two nodes as on one, and goes on with a spare in place of a node that dies',
  { skip },
  async (t) => {
    const root = await temporaryFolder(t);
    const python = writePython(root, found as PrimeRl);
    const model = await writePreset(path.join(root, 'model'));
    const project = await projectWithSecret(root, 'project');
    const shared = path.join(root, 'shared');
    await mkdir(shared);
    const names = namespaces(t, 3);
    const first = (options: object): TrainerWorker =>
      startTrainerWorker(t, {
        python,
        model,
        cwd: project,
        options: { kind: 'prime-rl', rankTimeoutS: 300, ...settingsOnCpu, ...options },
        before: alone(names[0]!),
        env: { MASTER_ADDR: addressOf(0), MASTER_PORT: port, RATCHET_PENDING: shared },
      });
    const node = (number: number) =>
      nodeAt(t, {
        name: names[number]!,
        rank: number,
        project,
        program: python,
        kind: 'prime-rl',
        before: alone(names[number]!),
      });
    const one = first({ ranks: 2 });
    const expected = await twoSteps(one, model);
    await one.do('close');
    one.kill();

    const worker = first({ count: 2 });
    const second = node(1);
    assert.equal(await twoSteps(worker, model), expected, 'the same bits as on one machine');
    assert.ok((await worker.do<{ digest: string }>('step', '3')).digest);
    second.process.kill('SIGKILL');
    await until('the end of all ranks', () => processesIn(shared).length === 0);
    node(2);
    await worker.do('step', '4'); // from the checkpoint of step 2: step 3 is repeated, and has to give what it gave
  },
);
