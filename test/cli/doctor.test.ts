/** `ratchet doctor` as one types it, on a machine that lacks what a run needs. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { Check } from '../../cli/doctor/machine.ts';

const program = fileURLToPath(new URL('../../cli/ratchet.mjs', import.meta.url));
const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-doctor-'));
after(() => rmSync(folder, { recursive: true }));

/** With nothing on PATH: no unshare, no Python, no GPU. */
async function examine(environment: string): Promise<{ code: number; check: (name: string) => Check | undefined }> {
  writeFileSync(path.join(folder, 'env.ts'), environment);
  writeFileSync(
    path.join(folder, 'run.toml'),
    'model = "preset:chars-0.4m"\nbatch_size = 8\nrollouts_per_example = 4\n[sampling]\nmax_tokens = 4\n[[env]]\nid = "./env.ts"\n',
  );
  return new Promise((resolve) => {
    const env = { HOME: folder, PATH: folder };
    execFile(process.execPath, [program, 'doctor', 'run.toml', '--json'], { cwd: folder, env }, (error, stdout) => {
      const { checks } = JSON.parse(stdout) as { checks: Check[] };
      const check = (name: string): Check | undefined => checks.find((one) => one.name === name);
      resolve({ code: Number(error?.code ?? 0), check });
    });
  });
}

const own = (load: string): string => `
import { listDataset, openPython, rubric, singleTurn } from 'ratchet/environments';
const data = listDataset([{ prompt: 'a', answer: 'A' }]);
export async function loadEnvironment() {
  ${load}
  return singleTurn({ name: 'own', dataset: data, evalDataset: data, rubric: rubric([{ name: 'one', weight: 1, score: () => 1 }]) });
}
`;

describe('doctor', () => {
  test("a sandbox that is missing matters to a run whose environment, also one of the user's own, asks for it", async () => {
    const { code, check } = await examine(own('await openPython();'));
    assert.deepEqual([code, check('sandbox')?.state, check('environment')?.state], [1, 'bad', 'bad']);
    assert.match(check('environment')!.says, /Python 3\.8 or newer/);
  });

  test('and to others it is something to know of', async () => {
    const { code, check } = await examine(own(''));
    assert.deepEqual([code, check('sandbox')?.state, check('environment')?.state], [0, 'warn', 'ok']);
  });
});
