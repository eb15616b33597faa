/** prime-rl's trainer on two nodes, as a stand-in: network namespaces of this machine, whose processes do not see one another. As root. */
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { temporaryFolder, writePreset } from '../../../backends/testing/material.ts';
import { processesIn } from '../../../backends/prime-rl/processes.mjs';
import {
  addressOf,
  alone,
  ip,
  mayNotNamespace,
  namespaces,
  nodeAt,
  port,
  projectWithSecret,
  type StartedNode,
} from '../../engines/namespaces.ts';
import { startTrainerWorker, type TrainerWorker } from '../../engines/started-trainer-worker.ts';
import { until } from '../../eventually.ts';
import { writeStandInPrimeRl } from '../../stand-ins/prime-rl/python.ts';

interface Stage {
  readonly root: string;
  readonly shared: string;
  readonly model: string;
  readonly names: readonly string[];
  first(count: number, options?: object): TrainerWorker;
  node(number: number, more?: { readonly hides?: string; readonly rank?: number }): StartedNode;
}

async function stageOf(t: TestContext): Promise<Stage> {
  const root = await temporaryFolder(t);
  const python = writeStandInPrimeRl(root);
  const model = await writePreset(path.join(root, 'model'));
  const project = await projectWithSecret(root, 'project');
  const shared = path.join(root, 'shared');
  await mkdir(shared);
  const names = namespaces(t, 3);
  t.after(() => until('the end of all processes', () => processesIn(shared).length === 0));
  return {
    root,
    shared,
    model,
    names,
    first: (count, options = {}) =>
      startTrainerWorker(t, {
        python,
        model,
        cwd: project,
        options: { kind: 'prime-rl', count, ...options },
        before: alone(names[0]!),
        env: { MASTER_ADDR: addressOf(0), MASTER_PORT: port, RATCHET_PENDING: shared },
      }),
    node: (number, { rank = number, ...more } = {}) =>
      nodeAt(t, {
        name: names[number]!,
        rank,
        project,
        program: python,
        kind: 'prime-rl',
        before: alone(names[number]!),
        ...more,
      }),
  };
}

/** Weights after three steps. */
async function threeSteps(worker: TrainerWorker, model: string): Promise<string> {
  await worker.do('open', model);
  let digest = '';
  for (const step of ['1', '2', '3']) digest = (await worker.do<{ digest: string }>('step', step)).digest;
  return digest;
}

describe('prime-rl’s trainer on two nodes', { skip: mayNotNamespace() }, () => {
  test('trains as two ranks of one machine do, ends with a node that is lost, and goes on with a spare', async (t) => {
    const { root, model, names, shared, first, node } = await stageOf(t);
    const hasNone = (): boolean => processesIn(shared).length === 0;
    const one = first(1, { ranks: 2 });
    const expected = await threeSteps(one, model);
    await one.do('close');
    one.kill();

    const faults = path.join(root, 'faults.json');
    process.env['STAND_IN_FAULTS'] = faults;
    process.env['RATCHET_PRIME_RL_VARIABLES'] = 'STAND_IN_FAULTS';
    await writeFile(faults, JSON.stringify([{ step: 4, after: 'read', kill: 'hang' }]));
    const worker = first(2);
    const opened = threeSteps(worker, model);
    const waitsForNode = async (): Promise<boolean> =>
      /^1 of 2 nodes of the trainer.* RANK=1 ratchet worker --role trainer-node --trainer prime-rl\)$/.test(
        (await worker.do<string | null>('waits')) ?? '',
      );
    await until('the wait for a node', waitsForNode);
    const second = node(1);
    assert.equal(await opened, expected, 'the same weights as on one machine');

    const lost = assert.rejects(worker.do('step', '4'), { code: 'EngineDied', message: /^On node 1 \(.*\): this node is lost/ }); // prettier-ignore
    await until('a step that hangs', () => existsSync(`${faults}.0.fired`));
    second.process.kill('SIGKILL');
    await lost;
    await until('the end of all ranks', hasNone);

    const again = threeSteps(worker, model);
    await until('the wait for a spare', waitsForNode);
    node(2, { rank: 7 });
    assert.equal(await again, expected, 'with another node in its place');
    ip('-n', names[2]!, 'link', 'set', 'eth0', 'down'); // as a cable that is pulled
    await until('the end of ranks on both sides', hasNone);
    ip('-n', names[2]!, 'link', 'set', 'eth0', 'up');
    await worker.do('step', '4'); // it has joined again, and repeats the steps since the checkpoint
  });

  test('is refused by name where a node does not see the folder of the first', async (t) => {
    const { model, shared, first, node } = await stageOf(t);
    const worker = first(2);
    const refused = assert.rejects(threeSteps(worker, model), {
      code: 'ConfigInvalid',
      message:
        /^On node 1 \(.*\): this node does not see .*trainer\.toml as the first one wrote it\. .* one shared disk/,
    });
    node(1, { hides: shared });
    await refused;
  });
});
