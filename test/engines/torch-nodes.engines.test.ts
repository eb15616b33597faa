/** A trainer on several nodes: network namespaces of this machine, each with an address of its own. `npm run test:engines`, as root. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import path from 'node:path';
import { describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { temporaryFolder, writePreset } from '../../backends/testing/material.ts';
import { until } from '../eventually.ts';
import { addressOf, ip, mayNotNamespace, namespaces, nodeAt, port, projectWithSecret } from './namespaces.ts';
import { startTrainerWorker, type TrainerWorker } from './started-trainer-worker.ts';
import { ensureTorch } from './torch-cpu.ts';

const found = await ensureTorch();
const skip = 'missing' in found ? `no PyTorch here: ${found.missing}` : mayNotNamespace();
const python = 'python' in found ? found.python : '';
const nodes = 3;

/** Addresses that processes of a namespace listen on. */
function listening(name: string): string[] {
  const lines = ip('netns', 'exec', name, 'ss', '-ltnH').trim().split('\n');
  return lines.map((line) => line.split(/\s+/)[3]!.replace(/:\d+$/, ''));
}

/** Weights after two steps, between which the optimizer's state is saved and restored. */
async function twoSteps(worker: TrainerWorker, model: string): Promise<string> {
  await worker.do('open', model);
  await worker.do('step', '1');
  await worker.do('save');
  await worker.do('restore');
  return (await worker.do<{ digest: string }>('step', '2')).digest;
}

describe('a trainer on two nodes', { skip }, () => {
  test('trains as two ranks of one machine do, waits for a node that is lost, and goes on with a spare', async (t) => {
    const root = await temporaryFolder(t);
    const model = await writePreset(path.join(root, 'models', 'step_0'));
    const hidden = path.join(root, 'models');
    const project = await projectWithSecret(root, 'project');
    const names = namespaces(t, nodes);
    const alone = startTrainerWorker(t, { python, model, cwd: project, options: { ranks: 2 } });
    const expected = await twoSteps(alone, model);
    await alone.do('close');

    const first = startTrainerWorker(t, {
      python,
      model,
      cwd: project,
      options: { ranks: 1, count: 2, timeout_s: 120 },
      before: ['ip', 'netns', 'exec', names[0]!],
      env: { MASTER_ADDR: addressOf(0), MASTER_PORT: port },
    });
    const opening = twoSteps(first, model);
    await until('the wait for a node', async () => (await first.do('waits')) !== null);
    assert.match(
      await first.do<string>('waits'),
      /^1 of 2 nodes of the trainer, or a spare \(there: MASTER_ADDR=10\.77\.0\.1 .* RANK=1 ratchet worker --role trainer-node\)$/,
    );
    const stranger = nodeAt(t, {
      program: python,
      name: names[2]!,
      rank: 1,
      project: await projectWithSecret(root, 'stranger'),
      hides: hidden,
    });
    await until('the refusal of a stranger', () => stranger.said().includes('it has another secret'));
    assert.ok((await first.do('waits')) !== null, 'it has not joined');
    stranger.process.kill('SIGKILL');

    const second = nodeAt(t, { program: python, name: names[1]!, rank: 1, project, hides: hidden });
    assert.equal(await opening, expected, 'the same bits as on one machine');
    for (const [node, name] of names.slice(0, 2).entries())
      assert.deepEqual([...new Set(listening(name))], [addressOf(node)], 'nothing listens elsewhere');

    second.process.kill('SIGKILL');
    await assert.rejects(first.do('step', '3'), {
      code: 'EngineDied',
      message: /^On node 1 \(.*\): this node is lost/,
    });
    const again = twoSteps(first, model);
    await until('the wait for a spare', async () => (await first.do('waits')) !== null);
    nodeAt(t, { program: python, name: names[2]!, rank: 7, project, hides: hidden });
    assert.equal(await again, expected, 'with another node in its place');
  });

  test('ends the group when a node gives no sign any more', async (t) => {
    const root = await temporaryFolder(t);
    const model = await writePreset(path.join(root, 'models', 'step_0'));
    const project = await projectWithSecret(root, 'project');
    const names = namespaces(t, nodes);
    const first = startTrainerWorker(t, {
      python,
      model,
      cwd: project,
      options: { ranks: 1, count: 2, timeout_s: 600 },
      before: ['ip', 'netns', 'exec', names[0]!],
      env: { MASTER_ADDR: addressOf(0), MASTER_PORT: port },
    });
    nodeAt(t, { program: python, name: names[1]!, rank: 1, project, hides: path.join(root, 'models') });
    await first.do('open', model);
    ip('-n', names[1]!, 'link', 'set', 'eth0', 'down'); // as a cable that is pulled
    const startedAt = performance.now();
    await assert.rejects(first.do('step', '1'), { code: 'EngineDied', message: /gave no sign for 10 s/ });
    assert.ok(performance.now() - startedAt < 60_000, 'long before ranks give each other up');
    const again = first.do<{ digest: string }>('open', model);
    await delay(1_000);
    ip('-n', names[1]!, 'link', 'set', 'eth0', 'up');
    await again; // it has joined again
  });
});

const impostor = `
import os, sys, torch, torch.distributed as dist
from ratchet_torch.ranks import Ranks
class Keys:
    """A rendezvous that gives this rank another key than the first one has."""
    def set(self, key, value): pass
    def get(self, key): return b"1" * 32 if os.environ["RANK"] == "0" else sys.argv[2].encode()
def rank(number):
    os.environ.update(RANK=str(number), WORLD_SIZE="2")
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=number, world_size=2)
    ranks = Ranks.__new__(Ranks)
    ranks.rank, ranks.world = number, 2
    ranks.prove(Keys(), "all", None)
child = os.fork()
try:
    rank(1 if child == 0 else 0)
    said = "taken for a rank"
except RuntimeError as error:
    said = str(error)
os.write(1, f"{said}\\n".encode())  # at once, since two processes write
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
`;

test(
  'what connects as a rank and has not the key of the group is found before a pickle of its is read',
  { skip },
  async (t) => {
    const root = await temporaryFolder(t);
    const env = { ...process.env, PYTHONPATH: fileURLToPath(new URL('../../python', import.meta.url)) };
    const said = (key: string): string =>
      execFileSync(python, ['-u', '-P', '-c', impostor, path.join(root, `meet-${key[0]}`), key], {
        env,
        encoding: 'utf8',
      });
    assert.deepEqual(said('1'.repeat(32)).trim().split('\n'), ['taken for a rank', 'taken for a rank']);
    assert.match(said('2'.repeat(32)), /what connected as rank 1 has not proved that it is/);
  },
);
