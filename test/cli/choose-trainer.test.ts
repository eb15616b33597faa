/**
 * What trains a run file that names GPUs for its trainer: PyTorch, if it and the GPUs are on this machine.
 */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { trainerGpusOf } from '../../config/gpu-settings.ts';
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

const today = `max_steps = 100
[orchestrator]
group_size = 8
[[orchestrator.train.source]]
env = { taskset = { id = "owner/gsm8k", split = "train" } }
`;

async function load(t: TestContext, text: string, overrides: Readonly<Record<string, string>> = {}) {
  const projectFolder = mkdtempSync(path.join(tmpdir(), 'ratchet-trainer-'));
  t.after(() => rmSync(projectFolder, { recursive: true, force: true }));
  writeFileSync(path.join(projectFolder, 'run.toml'), text);
  return loadRunConfig('run.toml', { projectFolder, overrides, isOnlyLookedAt: true });
}

const around = (
  gpus: number,
  more: Partial<Parameters<typeof chooseTrainer>[1]> = {},
  python: string | null = '/venv/bin/python',
) => ({
  projectFolder: '/nowhere',
  othersWork: null,
  began: () => Promise.resolve(null),
  machine: {
    gpus: () => Promise.resolve(gpus),
    python: () => Promise.resolve(python),
    hasAddress: () => false,
    isMac: false,
  },
  ...more,
});
const byTorch = (table = 'ratchet.trainer') => ({
  [`${table}.kind`]: 'torch',
  [`${table}.dtype`]: 'bfloat16',
});

test('PyTorch trains on the GPUs that the file names, where both are here', async (t) => {
  const { overrides, says } = await chooseTrainer(await load(t, prime04('[1]')), around(2));
  assert.deepEqual(overrides, byTorch());
  assert.equal(says, 'PyTorch trains on the 1 GPU (1) of the file, by /venv/bin/python; the embedded engine on the processor with --trainer.kind onnx'); // prettier-ignore
  const several = await chooseTrainer(await load(t, prime04('[1, 2]')), around(4));
  assert.deepEqual(several.overrides, byTorch());
  const chosen = await load(t, prime04('[1, 2]'), { ...several.overrides, 'ratchet.inference.kind': 'vllm' });
  assert.ok(chosen.spec.trainer.kind === 'torch');
  assert.deepEqual([chosen.spec.trainer.ranks, trainerGpusOf(chosen.spec)], [2, [1, 2]]);
  assert.deepEqual(chosen.spec.requested, undefined);
});

test('else the embedded engine trains, and a line says why and what to type', async (t) => {
  const loaded = await load(t, prime04('[1]'));
  const reasons: readonly (readonly [ReturnType<typeof around>, RegExp, boolean?])[] = [
    [around(0), /this machine has none\. PyTorch on the processor: --trainer\.kind torch; on a Tinker server: /],
    [around(1), /this machine has one, number 0\./],
    [around(2, {}, null), /no Python here has PyTorch.*npx ratchet-rl engine install torch \(about .* GB to download, .* GB on disk\), or train with --yes/, true], // prettier-ignore
    [around(2, { othersWork: 'TEMPORAL_ADDRESS has workers of its own' }), /of its own\. With a PyTorch of theirs: --trainer\.kind torch/], // prettier-ignore
  ];
  for (const [here, why, isLacking = false] of reasons) {
    const chosen = await chooseTrainer(loaded, here);
    assert.deepEqual(chosen.overrides, {});
    assert.match(chosen.says!, /^the embedded engine trains on the processor, and not on the 1 GPU \(1\) that the file has for the trainer: /); // prettier-ignore
    assert.match(chosen.says!, why);
    assert.equal(chosen.isLacking === true, isLacking);
  }
});

test('a trainer on several nodes has all GPUs of this one, and needs an address at which the others join', async (t) => {
  const deployment = '[deployment]\ntype = "multi_node"\nnum_train_nodes = 2\nnum_infer_nodes = 1\n[slurm]\n';
  const loaded = await load(t, `${today}${deployment}`);
  const unreached = await chooseTrainer(loaded, around(8));
  assert.match(unreached.says!, /on the 8 GPUs of each of 2 nodes .*its nodes join at MASTER_ADDR, which is not set here/); // prettier-ignore
  const { machine } = around(8);
  const chosen = await chooseTrainer(loaded, around(8, { machine: { ...machine, hasAddress: () => true } }));
  assert.deepEqual(chosen.overrides, byTorch());
  const { spec } = await load(t, `${today}${deployment}`, chosen.overrides);
  assert.ok(spec.trainer.kind === 'torch');
  assert.deepEqual([spec.trainer.ranks, spec.trainer.nodes], [8, 2]);
});

test('on a Mac PyTorch trains on the one GPU that it has, however many the file names', async (t) => {
  const { machine } = around(0);
  const onMac = around(0, { machine: { ...machine, isMac: true } });
  const chosen = await chooseTrainer(await load(t, prime04('[1, 2]')), onMac);
  assert.match(chosen.says!, /^PyTorch trains on this Mac, .* in place of the 2 GPUs \(1, 2\) of the file: on its GPU if that Python has it \(mps\)/); // prettier-ignore
  const { spec } = await load(t, prime04('[1, 2]'), chosen.overrides);
  assert.ok(spec.trainer.kind === 'torch');
  assert.deepEqual([spec.trainer.ranks, spec.trainer.dtype], [1, 'float32']);
  const lacking = await chooseTrainer(await load(t, prime04('[1]')), {
    ...onMac,
    machine: { ...machine, isMac: true, python: () => Promise.resolve(null) },
  });
  assert.deepEqual([lacking.overrides, lacking.isLacking], [{}, true]);
});

test('a run keeps the trainer that it began with, whatever is installed since', async (t) => {
  const loaded = await load(t, prime04('[1]'));
  const embedded = await chooseTrainer(loaded, around(2, { began: () => Promise.resolve('onnx') }));
  assert.deepEqual(embedded.overrides, {});
  assert.match(embedded.says!, /the run began on it and goes on there\. With PyTorch from its newest version on: --trainer\.kind torch/); // prettier-ignore
  const torch = await chooseTrainer(loaded, around(0, { began: () => Promise.resolve('torch') }, null));
  assert.deepEqual(torch.overrides, byTorch());
});

test('what is typed holds, and a file in our own words may say it itself', async (t) => {
  const nothing = { overrides: {}, says: null };
  for (const key of ['trainer.provider', 'trainer.kind']) {
    const typed = await load(t, prime04('[1]'), { [key]: key === 'trainer.kind' ? 'onnx' : 'cpu' });
    assert.deepEqual(await chooseTrainer(typed, around(2)), nothing);
  }
  const ours = (kind: string) => `model = "preset:reverse-text-0.2m"\n[trainer]\ngpus = 2\n${kind}[[env]]\nid = "reverse-text"\n`; // prettier-ignore
  assert.deepEqual(await chooseTrainer(await load(t, ours('kind = "onnx"\n')), around(2)), nothing);
  assert.deepEqual((await chooseTrainer(await load(t, ours('')), around(2))).overrides, byTorch('trainer'));
});
