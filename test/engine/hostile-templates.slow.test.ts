/** Renders with the full bounds, in a process with less memory than Node's default. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { templateBytesMax, templateWorkMax } from '../../engine/limits.ts';
import { renderAll } from './render-hostile.ts';

test('no template takes more than a few seconds, or more memory than a small machine has', () => {
  for (const [name, { seconds }] of renderAll([templateWorkMax, templateBytesMax], 1_000))
    assert.ok(seconds < 60, `${name} took ${seconds} s of CPU`);
});
