import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { bodyBytesInFlightMax, jsonDepthMax, jsonNodesMax, waitingRequestsMax } from '../../engine/limits.ts';
import { Admission } from '../../engine/server/generation/admission.ts';
import { parseBoundedJson, shortened } from '../../engine/server/json.ts';
import { PauseGate } from '../../engine/server/generation/pause-gate.ts';
import { RefusalLog } from '../../engine/server/refusal-log.ts';

const parse = (text: string): unknown => parseBoundedJson(Buffer.from(text));

test('JSON within the bounds is what JSON.parse makes of it', () => {
  fc.assert(fc.property(fc.json(), (text) => assert.deepEqual(parse(text), JSON.parse(text))));
  const quotes = ['"\\""', '"\\\\"', '["[[[[", "\\\\\\"[", {"{": "]"}]'];
  for (const text of quotes) assert.deepEqual(parse(text), JSON.parse(text));
});

test('depth and the number of values are bounded, brackets inside of strings do not count', () => {
  const nested = (depth: number): string => '['.repeat(depth) + ']'.repeat(depth);
  assert.doesNotThrow(() => parse(nested(jsonDepthMax)));
  assert.throws(() => parse(nested(jsonDepthMax + 1)), /nested deeper than 64/);
  assert.throws(() => parse('{"a":'.repeat(100)), /nested deeper/);
  assert.equal(parse(JSON.stringify('['.repeat(1000))), '['.repeat(1000));
  assert.throws(() => parse(`[${'{},'.repeat(jsonNodesMax)}1]`), /more than 262144 strings, lists and objects/);
  assert.equal((parse(`[${'1,'.repeat(jsonNodesMax)}1]`) as number[]).length, jsonNodesMax + 1, 'numbers are free');
});

test('bytes that are no UTF-8 and JSON that breaks off are refused', () => {
  assert.throws(() => parseBoundedJson(Buffer.from([0x22, 0xff, 0x22])), /expected UTF-8/);
  for (const text of ['"', '"\\', '{"a', '[1', '{"a":1}}']) assert.throws(() => parse(text), /is not JSON/);
});

test('what was taken is given back, whatever becomes of the request', async () => {
  const admission = new Admission();
  for (let i = 0; i < 3; i++) {
    await assert.rejects(
      admission.hold(async (budget) => {
        budget.takeBodyBytes(bodyBytesInFlightMax);
        await Promise.reject(new Error('broke'));
      }),
      /broke/,
    );
  }
  await admission.hold(async (budget) => {
    for (let i = 0; i < waitingRequestsMax; i++) budget.takeRequest();
    await assert.rejects(
      admission.hold(async (other) => Promise.resolve(other.takeRequest())),
      (error: Error & { status?: number }) => error.status === 429 && /Ask again later/.test(error.message),
    );
  });
});

test('what the log and answers repeat of a client is short and printable', () => {
  assert.equal(shortened('a\r\nb'), 'a\u{FFFD}\u{FFFD}b');
  assert.equal(shortened('x'.repeat(1000), 5), 'xxxxx… (1000 characters)');
  const lines: string[] = [];
  const log = new RefusalLog((line) => lines.push(line));
  for (let i = 0; i < 1000; i++) log.add('POST', `/${'y'.repeat(5000)}`, new Error('z'.repeat(5000)));
  assert.ok(lines.length <= 30, `${lines.length} lines`);
  assert.ok(lines.every((line) => line.length < 900));
});

test('a client that is gone does not wait for a paused server', async () => {
  const gate = new PauseGate(10);
  gate.pause();
  await assert.rejects(gate.pass(AbortSignal.abort(new Error('gone'))), /gone/);
  const controller = new AbortController();
  const waiting = gate.pass(controller.signal);
  assert.equal(gate.waitingCount, 1);
  controller.abort(new Error('gone'));
  await assert.rejects(waiting, /gone/);
  assert.equal(gate.waitingCount, 0);
});
