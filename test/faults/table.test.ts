import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Outcome } from './suite.ts';
import { faultTable, markers, summary, withTable } from './table.ts';

const held: Outcome = {
  row: 'rollout worker killed',
  column: 'generate',
  kind: 'held',
  lost: 12,
  recoverySeconds: 3.14,
};

test('a cell says how long its run took to continue and what was lost, one that was not run says that', () => {
  const row = rowOf('rollout worker killed', [held]);
  assert.equal(row['generate'], '✓ 3.1 s, 12 lost');
  assert.equal(row['score'], 'not run');
});

test('a cell that cannot be names the reason, and so does one that this machine cannot have', () => {
  const because = 'no tmpfs may be mounted here';
  const table = faultTable([{ ...held, column: 'score', kind: 'not run', because }], '2026-01-01');
  assert.match(table, /\| rollout worker killed \|.*\| not run \(1\) \|/);
  assert.ok(table.includes(`1. ${because}`));
  assert.match(rowOf('activity done twice', [])['train'] ?? '', /^– \(\d+\)$/);
});

test('a cell that did not hold is counted as one', () => {
  const outcomes: Outcome[] = [held, { row: 'GPU worker killed', column: 'train', kind: 'broken' }];
  assert.equal(rowOf('GPU worker killed', outcomes)['train'], '✗');
  assert.match(summary(outcomes), /^1 cells passed, 1 did not; 12 rollouts were lost in flight/);
});

test('the table takes the place of the one before, and nothing else of the document changes', () => {
  const document = `before\n${markers.begin}\nold\n${markers.end}\nafter\n`;
  const once = withTable(document, 'new\n');
  assert.equal(once, `before\n${markers.begin}\n\nnew\n\n${markers.end}\nafter\n`);
  assert.equal(withTable(once, 'new\n'), once);
  assert.throws(() => withTable('no markers', 'new'), /expected <!-- matrix begins -->/);
});

test('each engine has a table of its own, with the gaps of its own steps and without those in which it has no cell', () => {
  const columns = (name: string): string[] => Object.keys(rowOf(name, []));
  assert.ok(columns('Tinker server killed').includes('optim_step'));
  assert.ok(columns('vLLM killed').includes('load_lora_adapter'));
  for (const name of ['GPU worker killed', 'vLLM killed']) assert.ok(!columns(name).includes('optim_step'), name);
  assert.ok(columns('GPU worker killed').includes('continue-as-new'));
  assert.ok(!columns('Tinker server killed').includes('continue-as-new'));
  assert.match(rowOf('zombie (Tinker)', [])['generate'] ?? '', /^– \(\d+\)$/);
});

/** Cells of a row, by column. */
function rowOf(name: string, outcomes: readonly Outcome[]): Record<string, string> {
  const lines = faultTable(outcomes, '2026-01-01').split('\n');
  const at = lines.findIndex((one) => one.startsWith(`| ${name} |`));
  assert.ok(at >= 0, `${name} is a row`);
  const cells = (line: string): string[] =>
    line
      .split('|')
      .slice(2, -1)
      .map((cell) => cell.trim());
  const columns = cells(lines.slice(0, at).findLast((one) => one.startsWith('| fault |'))!);
  return Object.fromEntries(cells(lines[at]!).map((cell, i) => [columns[i]!, cell]));
}
