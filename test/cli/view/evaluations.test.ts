/** Looking through evaluations: what keys lead to, what stands on the screen, and what a terminal is left with. */
import assert from 'node:assert/strict';
import { EventEmitter } from 'node:events';
import { cp, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, test, type TestContext } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type { FoundEvaluations } from '../../../runs/evaluations/evaluation.ts';
import { findEvaluations } from '../../../runs/evaluations/folders.ts';
import { Browser } from '../../../cli/view/evaluations/browser.ts';
import { EvaluationData } from '../../../cli/view/evaluations/evaluation-data.ts';
import { browserFrame } from '../../../cli/view/evaluations/frame.ts';
import { afterKey } from '../../../cli/view/evaluations/keys.ts';
import type { TypedKey } from '../../../cli/view/keys.ts';
import { beginning, type BrowserState } from '../../../cli/view/evaluations/state.ts';
import { widthOf, written } from '../../../cli/view/lines.ts';
import type { TerminalOutput, Size } from '../../../cli/view/terminal.ts';
import { SmallKeyboard } from './small-terminal.ts';

const data = fileURLToPath(new URL('../../data/evals/verifiers-0.3.1/', import.meta.url));
let project = '';
let found: FoundEvaluations = { evaluations: [], incomplete: [] };

before(async () => {
  project = await mkdtemp(path.join(tmpdir(), 'ratchet-tui-'));
  await cp(data, project, { recursive: true });
  const { evaluations, incomplete } = await findEvaluations(project, project);
  // Which folder is newest depends on the copy.
  found = { evaluations: evaluations.toSorted((a, b) => a.where.localeCompare(b.where)), incomplete };
});
after(() => rm(project, { recursive: true }));

/** Somebody at a screen of this size. */
function person(t: TestContext, size: Size = { columns: 79, rows: 24 }) {
  const look = new EvaluationData(found, () => undefined);
  t.after(() => look.close());
  let state: BrowserState = beginning;
  const copied: string[] = [];
  const shown = (at = size): string => {
    const lines = browserFrame(state, look, at);
    return lines.map((line) => written(line, at.columns, { hasColor: false, hasUnicode: true })).join('\n');
  };
  const press = (key: TypedKey): void => {
    const next = afterKey(state, key, look, size);
    assert.ok(typeof next === 'object');
    if ('copy' in next) copied.push(next.copy);
    else state = next;
  };
  const settled = async (): Promise<string> => {
    for (;;) {
      const text = shown();
      if (!/reading|searching/.test(text)) return text;
      await delay(5);
    }
  };
  return {
    copied,
    shown,
    state: () => state,
    /** Names of keys with spaces between; `'text` is typed. Whatever is read is waited for. */
    keys: async (names: string): Promise<string> => {
      for (const name of names.split(' ')) {
        await settled();
        if (name.startsWith("'")) for (const text of name.slice(1)) press({ name: text.toLowerCase(), text });
        else press({ name: name.toLowerCase(), text: name, shift: /^[A-Z]$/.test(name) });
      }
      return settled();
    },
  };
}

/** The row that the cursor is on. */
function cursorRow(text: string): string {
  return text.split('\n').find((row) => row.startsWith('▸'))!;
}

describe('keys lead', () => {
  test('from environments to models, runs, a summary, its rollouts, and one of them, and back', async (t) => {
    const { keys } = person(t);
    assert.match(await keys('j j'), /▾ toy_single {2}\(2\)[\s\S]*org\/words-1b[\s\S]*▸ +d44fc336 +0\.501 +4 × 3/);
    const summary = await keys('return');
    assert.match(summary, /toy_single › org\/words-1b › d44fc336/);
    assert.match(summary, /0\.546 {2}mean of 11 rollouts.*metadata\.json: 0\.501/);
    assert.match(summary, /0\.001 +5 {2}█+\n +1\.001 +6 {2}█+/);
    assert.match(summary, /count +avg +min +max\n +exact +11 +0\.545/);
    assert.match(await keys('tab'), /12 rollouts\n▸#0 +1\.001 +逆: <answer>0drow<\/answer>\n/);
    assert.match(
      await keys('return'),
      /#0, 1 of 12[\s\S]*reward 1\.001[\s\S]*▾ assistant\n +逆: <answer>0drow<\/answer>/,
    );
    assert.match(await keys('n n p'), /#0, 2 of 12/);
    assert.match(cursorRow(await keys('b')), /^▸#0 /);
    assert.match(await keys('b'), /evaluations 3/);
  });

  test('to sections that fold: reasoning and calls at first, all with x, none with e, one with enter', async (t) => {
    const { keys } = person(t);
    const first = await keys('end return tab return');
    assert.match(
      first,
      /▸ reasoning {2}I should add 0 and 1\. A tool does that\.\n ▸ call add {2}\{ "a": 0, "b": 2 \}/,
    );
    assert.match(await keys('e'), /▾ call add\n +\{\n +"a": 0,\n +"b": 2\n +\}/);
    const closed = await keys('x');
    assert.match(closed, /▸ user {2}What is 0\+1\?/);
    assert.doesNotMatch(closed, /▾/);
    const opened = await keys('j j j return');
    assert.equal(cursorRow(opened), '▸▾ user');
    assert.match(opened, /▾ user\n {3}What is 0\+1\?\n ▸ reasoning/);
  });

  test('to what is searched for, in one rollout and in all', async (t) => {
    const { keys } = person(t);
    const all = await keys("j j return tab s '1DROW return");
    assert.match(all, /3 of 12 rollouts · with “1DROW”\n▸#1 /);
    assert.match(await keys('b'), /12 rollouts\n/);
    await keys('return');
    const hit = await keys("s 'word0 return");
    assert.match(cursorRow(hit), /Spell word0 backwards/);
    assert.match(hit, /▾ reasoning\n +The word is word0/, 'a section that has it is open');
    assert.match(cursorRow(await keys('tab')), /The word is word0/);
    assert.match(await keys("s 'nowhere return"), /“nowhere” is not in this rollout/);
  });

  test('to another order and to those that failed alone', async (t) => {
    const { keys } = person(t);
    await keys('j j return tab');
    assert.match(cursorRow(await keys('o o')), /0\.001/);
    assert.match(await keys('f f f'), /1 of 12 rollouts · worst first · failed\n▸#3 +failed ✗ ModelError/);
  });

  test('to two runs side by side, and to one example of both', async (t) => {
    const { keys, shown } = person(t);
    assert.match(await keys('j j v'), /A is toy_single/);
    const compared = await keys('j j v');
    assert.match(compared, /B against A: \+0\.125 reward per example/);
    assert.match(compared, /model +org\/words-1b +org\/words-3b/);
    assert.match(compared, /#1 +\+0\.333 {2}0 1 0 \| 1 1 0 +Spell word1/);
    const pair = await keys('end return');
    assert.match(pair, /example #2, 4 of 4\n.*A {2}rollout 1 of 3.*│.*B {2}rollout 1 of 3/);
    assert.match(pair, /2drow<\/answer> .*│.*2drow<\/answer> �\[31m!/, 'what the model says moves no cursor');
    const narrow = shown({ columns: 39, rows: 40 });
    assert.doesNotMatch(narrow, /│/);
    assert.match(narrow, /A {2}rollout 1 of 3[\s\S]*B {2}rollout 1 of 3/);
  });

  test('to the clipboard: the section at the cursor, or where an evaluation is', async (t) => {
    const { keys, copied } = person(t);
    await keys('j j c return tab return j j j c');
    assert.deepEqual(copied, ['toy_single--org--words-1b/d44fc336', 'Answer within <answer> tags.']);
  });
});

test('every screen fits its terminal, whatever its size, wide letters included', async (t) => {
  const { keys, shown } = person(t);
  const ways = ['j', 'j j return', 'tab', 'return', 'e', 'end', '?', 'b b b b v j j v', 'end return', '?'];
  for (const way of ways) {
    await keys(way);
    for (const [columns, rows] of [
      [79, 24],
      [119, 40],
      [39, 15],
      [20, 5],
      [1, 1],
    ] as const) {
      const lines = shown({ columns, rows }).split('\n');
      assert.equal(lines.length, Math.max(1, rows - 1), `${way} at ${columns}×${rows}`);
      for (const line of lines) assert.ok(widthOf(line) <= columns, `${way} at ${columns}×${rows}: ${line}`);
    }
  }
});

/**
 * A terminal for the output of log-update and the browser: text, line breaks, cursor moves, erasing, and the other
 * screen.
 */
class Grid extends EventEmitter {
  columns = 60;
  rows = 16;
  readonly isTTY = true;
  isOther = false;
  isCursorShown = true;
  readonly clipboard: string[] = [];
  #screen: string[] = [];
  #row = 0;
  #column = 0;

  get screen(): TerminalOutput {
    return this as unknown as TerminalOutput;
  }

  text(): string {
    return Array.from({ length: this.rows }, (_, i) => (this.#screen[i] ?? '').trimEnd()).join('\n');
  }

  write(data: string): boolean {
    // oxlint-disable-next-line no-control-regex -- escape sequences are what is read
    for (const [part] of data.matchAll(/\u001b\]52;c;[^\u0007]*\u0007|\u001b\[\??[\d;]*[A-Za-z]|\n|\r|[^\u001b\n\r]/gu))
      this.#put(part);
    return true;
  }

  #put(part: string): void {
    if (part.startsWith('\u001b]52;c;'))
      return void this.clipboard.push(Buffer.from(part.slice(7, -1), 'base64').toString());
    const [, mark, number = '', command] = /^\[(\??)([\d;]*)([A-Za-z])$/.exec(part.slice(1)) ?? [];
    const count = Number(number || 1);
    if (part === '\n') [this.#row, this.#column] = [this.#row + 1, 0];
    else if (part === '\r') this.#column = 0;
    else if (command === undefined) {
      const line = (this.#screen[this.#row] ?? '').padEnd(this.#column);
      this.#screen[this.#row] = line.slice(0, this.#column) + part + line.slice(this.#column + 1);
      this.#column += 1;
    } else if (mark && number === '1049') this.isOther = command === 'h';
    else if (mark && number === '25') this.isCursorShown = command === 'h';
    else if (mark) return;
    else if (command === 'A') this.#row = Math.max(0, this.#row - count);
    else if (command === 'B') this.#row = Math.min(this.rows - 1, this.#row + count);
    else if (command === 'G') this.#column = count - 1;
    else if (command === 'H') [this.#row, this.#column] = [0, 0];
    else if (command === 'J') this.#screen = [];
    else if (command === 'K')
      this.#screen[this.#row] = number === '2' ? '' : (this.#screen[this.#row] ?? '').slice(0, this.#column);
    assert.ok(part !== '\n' || this.#row < this.rows, 'the screen scrolls');
  }
}

describe('on a terminal', () => {
  function open(t: TestContext) {
    const terminal = new Grid();
    const keyboard = new SmallKeyboard();
    let isLeft = false;
    const shows = { hasColor: true, hasUnicode: true };
    const browser = new Browser(
      {
        found,
        find: () => Promise.resolve({ evaluations: [], incomplete: [] }),
        screen: terminal.screen,
        keyboard: keyboard.keyboard,
        shows,
      },
      () => (isLeft = true),
    );
    t.after(browser.close);
    browser.open();
    return { terminal, keyboard, isLeft: () => isLeft };
  }

  test('rows that come and go leave no others behind', (t) => {
    const { terminal, keyboard } = open(t);
    const whole = terminal.text();
    for (const at of [0, 1, 3]) {
      for (let i = 0; i < at; i++) keyboard.type('j');
      keyboard.type('return');
      assert.ok(terminal.text().split('\n').length === 16 && terminal.text().includes('toy_tool'), terminal.text());
      keyboard.type('return');
      keyboard.type('home');
      assert.equal(terminal.text(), whole);
    }
  });

  test('the size may change, and what was there before comes back in the end', (t) => {
    const { terminal, keyboard, isLeft } = open(t);
    assert.deepEqual([terminal.isOther, terminal.isCursorShown, keyboard.isRaw], [true, false, true]);
    [terminal.columns, terminal.rows] = [40, 10];
    terminal.emit('resize');
    assert.match(terminal.text(), /^ evaluations 3\n▸▾ toy_single {2}\(2\)\n/);
    keyboard.type('q');
    assert.deepEqual([terminal.isOther, terminal.isCursorShown, keyboard.isRaw, isLeft()], [false, true, false, true]);
  });

  test('copying says what was copied, and that the terminal decides', (t) => {
    const { terminal, keyboard } = open(t);
    for (const key of ['j', 'j', 'c']) keyboard.type(key);
    assert.deepEqual(terminal.clipboard, ['toy_single--org--words-1b/d44fc336']);
    assert.match(terminal.text(), /copied where it is \(34 characters\), if the terminal/);
  });

  test('another look shows what is there by then', async (t) => {
    const { terminal, keyboard } = open(t);
    keyboard.type('R');
    for (let i = 0; i < 100 && !terminal.text().includes('no evaluation found'); i++) await delay(5);
    assert.match(terminal.text(), /^ evaluations 0\n no evaluation found\n ratchet eval run ENV makes one/);
  });

  test('a bug leaves the terminal as it was, and is told then', () => {
    const terminal = new Grid();
    const keyboard = new SmallKeyboard();
    const broken = { evaluations: null as unknown as [], incomplete: [] };
    const told: unknown[] = [];
    const shows = { hasColor: false, hasUnicode: true };
    const find = () => Promise.resolve(broken);
    const options = { found: broken, find, screen: terminal.screen, keyboard: keyboard.keyboard, shows };
    new Browser(options, (bug) => told.push(bug, terminal.isOther)).open();
    assert.ok(told[0] instanceof TypeError);
    assert.deepEqual([told[1], terminal.isCursorShown, keyboard.isRaw], [false, true, false]);
  });
});
