import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { decodeRowsMax, prefillPositionsMax } from '../../engine/limits.ts';
import { admit, batchBytes, type VersionQueue } from '../../engine/sample/admission.ts';
import { rowBytes } from '../../engine/sample/row-bytes.ts';
import { tinyConfig } from './models.ts';

const perPosition = rowBytes(tinyConfig, 1);
const row = (id: number, length: number, promptLength = 1) => ({
  id,
  request: { promptTokenIds: Array.from({ length: promptLength }, () => 0), maxTokens: length - promptLength },
});
const idle = { rows: 0, length: 0 };
const bytesOf = (positions: number): number => positions * perPosition;
const within = (bytes: number) => ({ keyValueBytesMax: bytes, aloneBytesMax: bytes, rowsMax: decodeRowsMax });

test('rows start in the order of their arrival, whatever their version, as long as there is room', () => {
  const lines = [
    { running: idle, waiting: [row(1, 10), row(4, 10)] },
    { running: idle, waiting: [row(2, 10), row(3, 10)] },
  ];
  assert.deepEqual(admit(tinyConfig, within(bytesOf(1000)), lines), [2, 2]);
});

test('one version leaves room for another to begin', () => {
  const many = Array.from({ length: 100 }, (_, i) => row(i, 10));
  const [alone] = admit(tinyConfig, within(bytesOf(400)), [{ running: idle, waiting: many }]);
  assert.equal(alone, 30);
  const both: VersionQueue[] = [
    { running: { rows: 30, length: 10 }, waiting: many },
    { running: idle, waiting: [row(1000, 10), row(1001, 10)] },
  ];
  assert.deepEqual(admit(tinyConfig, within(bytesOf(400)), both), [0, 2]);
});

test('a row that needs nearly everything starts when it is alone', () => {
  assert.deepEqual(admit(tinyConfig, within(bytesOf(40)), [{ running: idle, waiting: [row(0, 20)] }]), [1]);
  const busy: VersionQueue[] = [
    { running: { rows: 2, length: 4 }, waiting: [row(5, 4)] },
    { running: idle, waiting: [row(3, 20)] },
  ];
  // The long row came first and waits for the others to end: no later row passes it.
  assert.deepEqual(admit(tinyConfig, within(bytesOf(40)), busy), [0, 0]);
});

test('a long line of prompts is computed in parts, so that rows that run do not stand still', () => {
  const waiting = Array.from({ length: 10 }, (_, i) => row(i, 32, 31));
  const long = waiting.map(({ id }) => ({
    id,
    request: { promptTokenIds: Array.from({ length: prefillPositionsMax / 2 }, () => 0), maxTokens: 1 },
  }));
  assert.deepEqual(admit(tinyConfig, within(Number.MAX_SAFE_INTEGER), [{ running: idle, waiting: long }]), [2]);
});

test('memory and rows stay within their bounds, and something always starts when nothing runs', () => {
  const line = fc.record({
    running: fc.constant(idle),
    waiting: fc.array(fc.integer({ min: 2, max: 50 }), { maxLength: 1500 }),
  });
  fc.assert(
    fc.property(
      fc.array(line, { minLength: 1, maxLength: 4 }),
      fc.integer({ min: 100, max: 100_000 }),
      (drawn, size) => {
        let id = 0;
        const lines = drawn.map(({ running, waiting }) => ({
          running,
          waiting: waiting.map((length) => row(id++, length)),
        }));
        const counts = admit(tinyConfig, within(bytesOf(size)), lines);
        const bytes = counts.map((rows, i) => {
          const lengths = lines[i]!.waiting.slice(0, rows).map(({ request }) => 1 + request.maxTokens);
          return batchBytes(tinyConfig, { rows, length: Math.max(0, ...lengths) });
        });
        assert.ok(bytes.reduce((sum, each) => sum + each, 0) <= bytesOf(size));
        assert.ok(counts.every((rows) => rows <= decodeRowsMax));
        assert.ok(id === 0 || counts.some((rows) => rows > 0));
      },
    ),
    { numRuns: 200, seed: 3 },
  );
});
