import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { AgentProgram } from '../../core/settings/programs.ts';
import { sweepsFor } from '../../activities/around/begin-sweeps.ts';

const program = {} as AgentProgram;

test('a schedule of sweeps is made where an environment takes sandboxes, and nowhere else', async () => {
  const asked: string[] = [];
  const begin = (store: string): Promise<unknown> => Promise.resolve(asked.push(store));
  await sweepsFor([{}, {}], 'file:///without', begin);
  await sweepsFor([{}, { program }], 'file:///with', begin);
  await sweepsFor([{ program }], 'file:///nobody-sweeps', undefined);
  assert.deepEqual(asked, ['file:///with']);
});

test('a schedule that cannot be made fails the opening: sandboxes would be left', async () => {
  const begin = (): Promise<unknown> => Promise.reject(new Error('no such namespace'));
  await assert.rejects(sweepsFor([{ program }], 'file:///with', begin), /no such namespace/);
});
