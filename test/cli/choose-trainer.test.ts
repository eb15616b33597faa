/**
 * Device for training a run file of another system: a GPU that it names, if this machine has one that the engine can
 * use.
 */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import type { Obstacle } from '../../load/checks/examine-run-file.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { chooseTrainer } from '../../cli/start/choose-trainer.ts';

const prime04 = (ids: string) => `inference_gpu_ids = [0]
trainer_gpu_ids = ${ids}
max_steps = 100
[model]
name = "Qwen/Qwen3-4B"
[orchestrator]
batch_size = 128
rollouts_per_example = 8
[[orchestrator.env]]
id = "reverse-text"
`;

async function load(t: TestContext, text: string, overrides: Readonly<Record<string, string>> = {}) {
  const projectFolder = mkdtempSync(path.join(tmpdir(), 'ratchet-trainer-'));
  t.after(() => rmSync(projectFolder, { recursive: true, force: true }));
  writeFileSync(path.join(projectFolder, 'run.toml'), text);
  return loadRunConfig('run.toml', { projectFolder, overrides, isOnlyLookedAt: true });
}

const machine = (gpus: number, ...lacks: Obstacle[]) => ({
  gpus: () => Promise.resolve(gpus),
  lacks: () => Promise.resolve(lacks),
});
const noProvider: Obstacle = {
  about: 'machine',
  says: 'CUDA provider: onnxruntime-node has none',
  remedies: ['it is downloaded by: INSTALL'],
};

test('it trains on the GPU that the file names, where the engine can', async (t) => {
  const { provider, says } = await chooseTrainer(await load(t, prime04('[1]')), null, machine(2));
  assert.equal(provider, 'cuda');
  assert.equal(says, 'the embedded engine trains on GPU 1, as the file asks (provider = "cuda"); on the processor with --trainer.provider cpu'); // prettier-ignore
  const several = await chooseTrainer(await load(t, prime04('[1, 2]')), null, machine(4));
  assert.match(several.says!, /trains on GPU 1, one of 2: one process trains/);
});

test('else it trains on the processor, and a line says why and what to type', async (t) => {
  const loaded = await load(t, prime04('[1]'));
  const reasons: readonly (readonly [Parameters<typeof chooseTrainer>[1], ReturnType<typeof machine>, RegExp])[] = [
    [null, machine(0), /this machine has none\. On a Tinker server: /],
    [null, machine(1), /this machine has one, number 0\./],
    [null, machine(2, noProvider), /CUDA provider: onnxruntime-node has none\. it is downloaded by: INSTALL; then --trainer\.provider cuda/], // prettier-ignore
    ['TEMPORAL_ADDRESS has workers of its own', machine(2), /of its own\. On a GPU of theirs: --trainer\.provider cuda/], // prettier-ignore
  ];
  for (const [others, here, why] of reasons) {
    const { provider, says } = await chooseTrainer(loaded, others, here);
    assert.equal(provider, null);
    assert.match(says!, /^the embedded engine trains on the processor, and not on the 1 GPU \(1\) that the file has for the trainer: /); // prettier-ignore
    assert.match(says!, why);
  }
});

test('what is typed holds, and a file in our own words says it itself', async (t) => {
  const nothing = { provider: null, says: null };
  const typed = await load(t, prime04('[1]'), { 'trainer.provider': 'cpu' });
  assert.deepEqual(await chooseTrainer(typed, null, machine(2)), nothing);
  const ours = 'model = "preset:reverse-text-0.2m"\n[trainer]\ngpus = 1\n[[env]]\nid = "reverse-text"\n';
  assert.deepEqual(await chooseTrainer(await load(t, ours), null, machine(2)), nothing);
});
