import assert from 'node:assert/strict';
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { trainerGpusOf } from '../../config/gpu-settings.ts';
import { getMissing } from '../../cli/start/get-missing.ts';
import { chooseSampler } from '../../cli/start/choose-sampler.ts';
import { loadRunConfig, requireWhole } from '../../load/load-run-config.ts';

const vfRl =
  'model = "Qwen/Qwen3-0.6B"\n[env]\nid = "reverse-text"\n[inference]\ngpus = 2\n[inference.args]\nmax_model_len = 64\n[trainer]\ngpus = 1\n[trainer.args]\nuse_lora = false\n';
const ours = 'model = "preset:reverse-text-0.2m"\n[inference]\ngpus = 2\n[[env]]\nid = "reverse-text"\n';

interface Machine {
  /** Number that the driver reports; none = there is no driver. */
  readonly gpus?: number;
  readonly hasVllm?: boolean;
  readonly file?: string;
}

/** A project on a machine whose programs are stand-ins. */
function project(t: TestContext, { gpus, hasVllm = false, file = vfRl }: Machine): string {
  const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-sampler-'));
  const bin = path.join(folder, 'bin');
  mkdirSync(bin);
  const program = (name: string, says: string): void => {
    writeFileSync(path.join(bin, name), `#!/bin/sh\nprintf '${says}'\n`);
    chmodSync(path.join(bin, name), 0o755);
  };
  program('python3', 'False\\n');
  if (hasVllm)
    writeFileSync(path.join(bin, 'python3'), '#!/bin/sh\ncase "$*" in *vllm*) echo True ;; *) echo False ;; esac\n');
  program('python', 'False\\n');
  if (gpus !== undefined) program('nvidia-smi', Array.from({ length: gpus }, (_, i) => `${i}\\n`).join(''));
  writeFileSync(path.join(folder, 'run.toml'), file);
  const before = { PATH: process.env['PATH'], VIRTUAL_ENV: process.env['VIRTUAL_ENV'] };
  process.env['PATH'] = bin;
  delete process.env['VIRTUAL_ENV'];
  t.after(() => {
    process.env['PATH'] = before.PATH;
    if (before.VIRTUAL_ENV !== undefined) process.env['VIRTUAL_ENV'] = before.VIRTUAL_ENV;
    rmSync(folder, { recursive: true, force: true });
  });
  return folder;
}

describe('a file of another system that names GPUs for its vLLM', () => {
  test('is sampled by a vLLM that is started, where the GPUs and a vLLM are here', async (t) => {
    const projectFolder = project(t, { gpus: 4, hasVllm: true });
    const { overrides, says } = await chooseSampler('run.toml', { projectFolder });
    assert.match(says!, /^vLLM samples, started from python3 on 2 GPUs/);
    const { spec } = await loadRunConfig('run.toml', { projectFolder, overrides });
    assert(spec.inference.kind === 'vllm');
    assert.deepEqual(spec.inference.vllm.gpuIds, [0, 1]);
    assert.deepEqual(spec.inference.vllm.args, { max_model_len: 64, data_parallel_size: 2 });
    assert.deepEqual(spec.requested, {
      trainerGpus: 1,
      inferenceGpus: null,
      vllm: {},
      torch: { dtype: 'bfloat16' },
    });
    const python = path.join(projectFolder, 'bin/python3');
    writeFileSync(python, '#!/bin/sh\necho True\n');
    const both = await chooseSampler('run.toml', { projectFolder });
    assert.match(both.trainerSays!, /^PyTorch trains on the 1 GPU of the file, by python3/);
    assert(both.looked?.spec.trainer.kind === 'torch' && both.looked.spec.inference.kind === 'vllm');
    assert.deepEqual(trainerGpusOf(both.looked.spec), [2], 'behind those that sample');
    writeFileSync(path.join(projectFolder, 'bin/nvidia-smi'), "#!/bin/sh\nprintf '0\\n1\\n'\n");
    const tooFew = await chooseSampler('run.toml', { projectFolder });
    assert.match(tooFew.trainerSays!, /this machine has 2, numbers 0 to 1/);
  });

  test('is sampled by the embedded engine elsewhere, and a line says why', async (t) => {
    const reasons: readonly (readonly [Machine, RegExp])[] = [
      [{ hasVllm: true }, /this machine has none/],
      [{ gpus: 1, hasVllm: true }, /this machine has 1 GPU/],
      [{ gpus: 2 }, /no Python here has it: npx ratchet-rl engine install vllm/],
    ];
    for (const [machine, why] of reasons) {
      const projectFolder = project(t, machine);
      const { overrides, says } = await chooseSampler('run.toml', { projectFolder });
      assert.deepEqual(overrides, {});
      assert.match(says!, /^the embedded engine samples, and not the vLLM that the file has 2 GPUs for/);
      assert.match(says!, why);
    }
  });

  test('is left to the workers of another Temporal server as they are', async (t) => {
    const projectFolder = project(t, { gpus: 4, hasVllm: true });
    process.env['TEMPORAL_ADDRESS'] = '127.0.0.1:1';
    t.after(() => delete process.env['TEMPORAL_ADDRESS']);
    const { overrides, says } = await chooseSampler('run.toml', { projectFolder });
    assert.deepEqual(overrides, {});
    assert.match(says!, /TEMPORAL_ADDRESS has workers of its own/);
  });

  test('is sampled by what the command line says', async (t) => {
    const projectFolder = project(t, { gpus: 4, hasVllm: true });
    const overrides = { 'inference.kind': 'embedded' };
    const chosen = await chooseSampler('run.toml', { projectFolder, overrides });
    assert.deepEqual([chosen.overrides, chosen.says], [overrides, null]);
  });
});

test('a file in our own words says itself who samples', async (t) => {
  const projectFolder = project(t, { gpus: 4, hasVllm: true, file: ours });
  assert.equal((await chooseSampler('run.toml', { projectFolder })).says, null);
});

test('a file that was looked at is not read again, unless something is chosen', async (t) => {
  const projectFolder = project(t, { file: ours });
  const looked = await loadRunConfig('run.toml', { projectFolder, isOnlyLookedAt: true });
  rmSync(path.join(projectFolder, 'run.toml'));
  const chosen = await chooseSampler('run.toml', { projectFolder }, looked);
  assert.equal(chosen.looked, looked);
  assert.equal(await getMissing(looked, projectFolder, true), false, 'nothing came: it still says what there is');
  assert.equal(await requireWhole(looked, 'run.toml', { projectFolder }), looked);
});
