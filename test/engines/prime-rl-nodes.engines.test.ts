/** prime-rl's own trainer on two nodes: network namespaces of this machine, whose processes do not see one another. `npm run test:engines`, as root. */
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import { processesIn } from '../../backends/prime-rl/processes.mjs';
import { temporaryFolder, writePreset } from '../../backends/testing/material.ts';
import { until } from '../eventually.ts';
import {
  addressOf,
  alone,
  mayNotNamespace,
  namespaces,
  nodeAt,
  port,
  projectWithSecret,
  type StartedNode,
} from './namespaces.ts';
import { forksBefore, type PrimeRl, primeRl } from './prime-rl/installations.ts';
import { settingsOnCpu } from './prime-rl/trainer.ts';
import { startTrainerWorker, type TrainerWorker } from './started-trainer-worker.ts';

const found = primeRl('head');
const skip = 'missing' in found ? found.missing : mayNotNamespace();

/** Weights after each of these steps; every second one makes a checkpoint. */
async function train(worker: TrainerWorker, steps: readonly string[]): Promise<string[]> {
  const digests: string[] = [];
  for (const step of steps) digests.push((await worker.do<{ digest: string }>('step', step)).digest);
  return digests;
}

test(
  'prime-rl’s trainer has the same bits on two nodes as on one, and goes on with a spare in place of a node that dies in a step',
  { skip },
  async (t) => {
    const root = await temporaryFolder(t);
    const model = await writePreset(path.join(root, 'model'));
    const project = await projectWithSecret(root, 'project');
    const [shared, pauses] = [path.join(root, 'shared'), path.join(root, 'pauses')];
    for (const folder of [shared, pauses]) await mkdir(folder);
    const names = namespaces(t, 3);
    // Ranks of a node are forks of a parent on that node: a start takes a second there, and not the minutes of four programs that import PyTorch.
    const onNode = async (number: number): Promise<{ readonly python: string; readonly before: string[] }> => {
      const { python, words } = forksBefore(await mkdtemp(path.join(root, 'forks-')), found as PrimeRl, { pauses });
      return { python, before: [...alone(names[number]!), ...words] };
    };
    const first = async (options: object): Promise<TrainerWorker> =>
      startTrainerWorker(t, {
        ...(await onNode(0)),
        model,
        cwd: project,
        options: { kind: 'prime-rl', rankTimeoutS: 300, ...settingsOnCpu, ...options },
        env: { MASTER_ADDR: addressOf(0), MASTER_PORT: port, RATCHET_PENDING: shared },
      });
    const node = async (number: number): Promise<StartedNode> => {
      const { python, before } = await onNode(number);
      return nodeAt(t, { name: names[number]!, rank: number, project, program: python, kind: 'prime-rl', before });
    };
    const one = await first({ ranks: 2 });
    await one.do('open', model);
    const expected = await train(one, ['1', '2', '3', '4']);
    await one.do('close');
    one.kill();

    const worker = await first({ count: 2 });
    const second = await node(1);
    await worker.do('open', model);
    assert.deepEqual(await train(worker, ['1', '2', '3']), expected.slice(0, 3), 'the same bits as on one machine');
    await writeFile(path.join(pauses, 'backward'), '');
    const lost = assert.rejects(worker.do('step', '4'), {
      code: 'EngineDied',
      message: /^On node 1 \(.*\): this node is lost/,
    });
    await until('a rank in the middle of step 4', () => existsSync(path.join(pauses, 'backward.reached')));
    second.process.kill('SIGKILL');
    await lost;
    await until('the end of all ranks', () => processesIn(shared).length === 0);
    await node(2);
    // From the checkpoint of step 2: step 3 is repeated, and has to give what it gave.
    assert.deepEqual(await train(worker, ['4']), expected.slice(3), 'the same bits with a spare');
    await worker.do('close'); // before the folder that it works in is removed
  },
);
