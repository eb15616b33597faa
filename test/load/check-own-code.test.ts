import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { checkOwnCode } from '../../load/checks/check-own-code.ts';
import { LossSpec } from '../../config/settings/learning.ts';
import { TrainerSpec } from '../../config/settings/trainer.ts';

test('a loss of the user’s own that makes no graph is refused before a run, wherever it is computed', async (t) => {
  const folder = mkdtempSync(path.join(tmpdir(), 'own-loss-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const file = path.join(folder, 'loss.mjs');
  writeFileSync(file, 'export default () => 7;\n');
  const loss = LossSpec.parse({
    type: 'custom',
    clipHigh: 1,
    aggregation: 'token',
    import: { path: file, sha256: null },
  });
  const kl = { beta: 0 } as Parameters<typeof checkOwnCode>[0]['kl'];
  const check = (trainer: object): Promise<void> =>
    checkOwnCode({ loss, advantage: 'centered', kl, trainer: TrainerSpec.parse(trainer) });
  const server = { url: 'http://127.0.0.1:1', apiKeyVar: null, server: 'skyrl', baseModel: null, checkpointTtlS: null };
  await assert.rejects(check({ kind: 'onnx' }), /loss\.mjs/);
  await assert.rejects(check({ kind: 'tinker', ...server, reduction: 'sequence_mean' }), /loss\.mjs/);
  // A trainer of the user's own may take anything for a loss.
  await check({ kind: 'module', import: { path: file, sha256: null }, options: {} });
});
