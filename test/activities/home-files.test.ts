/**
 * Unchanged run files of prime-rl, run for a step with a tiny model and a stand-in for their environment; `bench
 * fidelity --play` runs all.
 */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, describe, test } from 'node:test';
import { compared } from '../config/home/compare.ts';
import { homeFiles } from '../config/home/files.ts';
import { openStage } from '../config/home/play.ts';

const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-home-files-'));
const stage = await openStage(folder, 'reverse-text');
after(async () => {
  await stage.close();
  await rm(folder, { recursive: true, force: true });
});

const files = homeFiles();
const played = [
  ['HEAD', 'configs/basic/wordle/rl.toml'],
  ['HEAD', 'configs/debug/algo/opd_lora.toml'],
  ['HEAD', 'configs/debug/algo/mixed_grpo_opd.toml'],
  ['HEAD', 'configs/debug/algo/echo.toml'],
  ['v0.4.0', 'configs/env_mix/env_mix.toml'],
] as const;

describe('a run file of prime-rl makes a step', () => {
  for (const [release, name] of played) {
    test(`${name} of ${release}`, async () => {
      const file = files.find((one) => one.release === release && one.path === name);
      assert.ok(file);
      const comparison = compared(file);
      assert.equal(comparison.kind, 'loaded');
      const { rows, metrics } = await stage.play(comparison.run.spec);
      assert.ok(rows > 0);
      assert.ok(Number.isFinite(metrics['loss']) && metrics['grad_norm']! > 0, JSON.stringify(metrics));
    });
  }
});
