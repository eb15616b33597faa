import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { whyNotTracked } from '../../backends/metrics/tracking-server.ts';
import { WandbSpec } from '../../config/settings/run.ts';

test('metrics for W&B without a key are warned of, unless they are to stay here', async (t) => {
  const home = await mkdtemp(path.join(tmpdir(), 'ratchet-home-'));
  t.after(() => rm(home, { recursive: true, force: true }));
  const said = (environment: NodeJS.ProcessEnv, written: Partial<WandbSpec> = {}): string[] =>
    whyNotTracked({ wandb: WandbSpec.parse(written) }, environment, home);
  const [warning, ...more] = said({});
  assert.match(warning ?? '', /W&B would stay in files of this machine: expected a key in WANDB_API_KEY/);
  assert.deepEqual(more, []);
  const untold = [
    said({ WANDB_API_KEY: 'k' }),
    said({ WANDB_API_KEY_FILE: '/run/secrets/wandb' }),
    said({}, { mode: 'offline' }),
    said({}, { mode: 'disabled' }),
    said({ TEMPORAL_ADDRESS: 'temporal:7233' }),
  ];
  assert.deepEqual(untold.flat(), []);
  await writeFile(path.join(home, '.netrc'), 'machine api.wandb.ai login user password k\n');
  assert.deepEqual(said({}), [], 'somebody has logged in');
});
