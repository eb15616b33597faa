import assert from 'node:assert/strict';
import { test } from 'node:test';
import { processPlace } from '../../host/process-place.ts';
import { isGone, isHere, thisWorker } from '../../host/worker-process.ts';

const [place = '', pid, start] = thisWorker().split(':');
const worker = (of: string, number: string | number = pid!, began: string | number = start!): string =>
  `${of}:${number}:${began}`;
/** The name of this place with another last part but `at`. */
const otherwise = (at: number): string =>
  place
    .split('.')
    .map((part, i, all) => (i === all.length - at ? part.replaceAll(/./g, 'f') : part))
    .join('.');

test('a process of this place is known to have ended, by its number, its start and that of the machine', () => {
  assert.deepEqual([isHere(thisWorker()), isGone(thisWorker())], [true, false]);
  for (const gone of [worker(place, pid, 1), worker(place, 2 ** 22 + 1), worker(otherwise(1))])
    assert.deepEqual([isHere(gone), isGone(gone)], [true, true], gone);
});

test('nothing is known of a process of another place, whatever its host is called', () => {
  for (const elsewhere of [worker(otherwise(2), pid, 1), 'another-host:1:2', 'host.example.com:1:2', ''])
    assert.deepEqual([isHere(elsewhere), isGone(elsewhere)], [false, false], elsewhere);
});

test('containers of one name are places of their own; a machine stays the same one when it starts again', () => {
  const machine = { host: 'worker', namespace: 'pid:[4026531836]', machine: 'm1', boot: 'b1' };
  const container = { ...machine, namespace: 'pid:[4026532201]', machine: '' };
  const places = [
    machine,
    { ...machine, machine: 'm2' },
    { ...machine, host: 'another' },
    { ...machine, machine: '' },
    container,
    { ...container, namespace: 'pid:[4026532202]' },
    { ...container, boot: 'b2' },
  ].map((facts) => processPlace(facts));
  assert.equal(new Set(places).size, places.length);
  assert.equal(processPlace({ ...machine, boot: 'b2' }), places[0]);
  assert.match(places[0]!, /^[0-9a-f]{8}$/);
});
