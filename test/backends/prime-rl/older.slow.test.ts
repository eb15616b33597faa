/** prime-rl v0.4.0, as a stand-in: its trainer packs samples, counts from 0, and has a place of its own for where it goes on. */
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { olderForm } from '../../../backends/prime-rl/forms.ts';
import { Bench, gaps } from './trained.ts';

const last = 3;

describe('a run that prime-rl v0.4.0 trains', () => {
  let bench: Bench;
  let undisturbed: string[];

  before(async () => {
    bench = await Bench.make({ isOlder: true });
    const trainer = await bench.opened();
    undisturbed = await bench.steps(trainer, 1, last);
    await trainer.close();
  });
  after(() => bench.close());

  test('learns what one does that the main branch trains', async () => {
    const main = await Bench.make();
    const [older, newer] = [await bench.opened(), await main.opened()];
    for (let step = 1; step <= last; step++) {
      const [one, other] = [await bench.step(older, step), await main.step(newer, step)];
      for (const name of ['loss', 'grad_norm', 'entropy', 'mismatch_kl'])
        assert.ok(Math.abs(one.metrics[name]! - other.metrics[name]!) < 1e-3, `${name} of step ${step}`);
    }
    await older.close();
    await main.close();
  });

  test('ends with the same versions, whatever is killed, wherever', async () => {
    for (const gap of gaps) {
      bench.plan([{ step: 2, after: gap, kill: 'both' }]);
      const { digests, deaths } = await bench.throughDeaths(1, last);
      assert.deepEqual(digests, undisturbed, `killed after ${gap}`);
      // The checkpoint is the last that it makes of a step.
      assert.ok(deaths === 1 || (gap === 'checkpoint' && deaths === 0), `${deaths} deaths after ${gap}`);
    }
  });

  test('goes on with the batch behind its checkpoint: the folder that its packer looks at is there, and no other', async () => {
    const folder = path.join(bench.newFolder(), 'start');
    mkdirSync(folder);
    await olderForm.prepare({ folder, from: 2, lora: null });
    assert.deepEqual(readdirSync(path.join(folder, 'run_default', 'checkpoints')), ['step_2']);
    assert.ok(
      existsSync(path.join(folder, 'run_default', 'control', 'orch.toml')),
      'without it the trainer waits for ever',
    );
  });

  test('refuses rows whose tokens have different advantages, and supervised steps, before anything is started', async () => {
    const trainer = await bench.opened();
    const rows = bench.rows.map(({ advantages, ...row }) => ({
      ...row,
      advantages: advantages.map((one, t) => one * t),
    }));
    await assert.rejects(bench.step(trainer, 1, rows), /one advantage for all tokens of a row/);
    const optimizer = { beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 1 };
    await assert.rejects(trainer.sftStep({ samples: bench.rows, learningRate: 1e-3, optimizer }), /no warm-up/);
    assert.deepEqual(bench.processes(), []);
    await trainer.close();
  });
});
