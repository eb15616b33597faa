/** The numbers of a run as columns, in whatever order and pieces its rows come. */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { pathToFileURL } from 'node:url';
import fc from 'fast-check';
import { openRunStore } from '../../store/index.ts';
import { layout } from '../../runs/layout.ts';
import { MetricsTable } from '../../ui/metrics-table.ts';

const row = fc.record({
  step: fc.nat(300),
  lineage: fc.constantFrom('main', 'lineage-2'),
  values: fc.dictionary(fc.constantFrom('a', 'b', 'c', 'd'), fc.integer({ min: -9, max: 9 })),
});

test('whatever the order of rows, of their metrics and of readings, each has the value that was written last', async (t) => {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-table-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  let runs = 0;
  await fc.assert(
    fc.asyncProperty(fc.array(row, { minLength: 1, maxLength: 150 }), fc.nat(150), async (rows, cut) => {
      const store = openRunStore(pathToFileURL(`${folder}/`).href, `run-${++runs}`);
      const table = new MetricsTable(store);
      const expected = new Map<string, number>();
      for (const part of [rows.slice(0, cut), rows.slice(cut)]) {
        const lines = part.map(({ step, lineage, values }) => `${JSON.stringify({ step, lineage, ...values })}\n`);
        if (lines.length > 0) await store.append(layout.metrics(), lines.join(''));
        for (const { step, lineage, values } of part)
          for (const [name, value] of Object.entries(values)) expected.set(`${lineage} ${step} ${name}`, value);
        await table.refresh();
      }
      const found = new Map<string, number>();
      for (const lineage of ['main', 'lineage-2']) {
        const steps = table.rowsOf(lineage).map((at) => table.stepOf(at));
        const written = new Set(rows.filter((one) => one.lineage === lineage).map(({ step }) => step));
        assert.deepEqual(
          steps,
          [...written].sort((a, b) => a - b),
        );
        const inside = table.rowsOf(lineage, 100, 200).map((at) => table.stepOf(at));
        assert.deepEqual(
          inside,
          steps.filter((step) => step >= 100 && step <= 200),
        );
        for (const at of table.rowsOf(lineage))
          for (const [name, value] of Object.entries(table.valuesOf(at, table.names)))
            found.set(`${lineage} ${table.stepOf(at)} ${name}`, value);
      }
      assert.deepEqual(found, expected);
    }),
    { numRuns: 60 },
  );
});

test('a curve of few points begins with v0 by itself, and its points have all the other steps', async (t) => {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-table-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const store = openRunStore(pathToFileURL(`${folder}/`).href, 'long');
  const rows = Array.from({ length: 41 }, (_, step) => ({ step, lineage: 'main', evaluated: step === 0 ? 0.2 : 0.8 }));
  await store.append(layout.metrics(), rows.map((one) => `${JSON.stringify(one)}\n`).join(''));
  const table = new MetricsTable(store);
  await table.refresh();
  const { step, values } = table.part('main', table.rowsOf('main'), ['evaluated'], 20);
  assert.deepEqual(step, [0, 20, 40]);
  assert.deepEqual(values['evaluated'], [0.2, 0.8, 0.8]);
  const later = table.part('main', table.rowsOf('main', 1), ['evaluated'], 20);
  assert.deepEqual(later.step, [20, 40]);
});
