import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../core/errors.ts';
import type { ResultMessage, ResultRow } from '../../core/eval/result-rows.ts';
import type { FoundEvaluation } from '../../runs/evaluations/evaluation.ts';
import { onOneLine } from '../output/plain-text.ts';
import { storeOption } from '../typed/store-option.ts';
import { figure, titleOf } from './figures.ts';
import { namedEvaluations } from './find.ts';
import { readEvaluation, type ReadEvaluation } from './read.ts';
import { summarySections } from './summary-lines.ts';
import { print, printAside, printJson } from '../output/print.ts';

/** Width when the output is not a terminal. */
const defaultColumns = 100;
/** Characters of an example's prompt and answer. */
const exampleChars = 300;

export const showCommand = new Command('show')
  .description(
    'what evaluations came to: reward and its distribution, metrics, pass@k, usage, failures by cause, an example',
  )
  .argument(
    '<path|run[@step]...>',
    "folders (verifiers' own, too), ENV--MODEL or ids of `ratchet eval list`, or versions of runs: my-run, my-run@20",
  )
  .option('--env <name>', 'of this environment alone')
  .option('--json', 'a JSON array, one object for each evaluation')
  .option(...storeOption)
  .action(async (names, options) => {
    const found = [];
    for (const name of names) found.push(...(await namedEvaluations(name, options)));
    const { shown, without } = await readAll(found);
    for (const { message } of without) printAside(message);
    if (options.json) printJson(shown.map(told), 2);
    else print((await Promise.all(shown.map((one) => describeEvaluation(one)))).join('\n\n'));
  });

/** Skips evaluations without rows. Throws when none has any. */
async function readAll(found: readonly FoundEvaluation[]) {
  const shown: ReadEvaluation[] = [];
  const without: RatchetError[] = [];
  for (const one of found) {
    try {
      shown.push(await readEvaluation(one));
    } catch (error) {
      if (!(error instanceof RatchetError)) throw error;
      without.push(error);
    }
  }
  if (shown.length === 0) throw without[0]!;
  return { shown, without };
}

/** `--json`: one of these for each evaluation. */
export function told({ found, file, figures }: ReadEvaluation) {
  const { environment, model, id, where, step, metadata } = found;
  const { settings, passAtK, passAllK, passThreshold, avgReward, seconds, cost } = metadata;
  return {
    environment,
    model,
    id,
    where,
    step,
    ...figures,
    unreadable: file.unreadable,
    metadata: { avgReward, passAtK, passAllK, passThreshold, seconds, cost, settings },
  };
}

/** `hasExample: false` leaves the example out. */
export async function describeEvaluation(read: ReadEvaluation, { hasExample = true } = {}): Promise<string> {
  const { found, figures, file } = read;
  const columns = process.stdout.isTTY ? process.stdout.columns : defaultColumns;
  const sections = summarySections({ found, figures, unreadable: file.unreadable, columns });
  const example = hasExample ? await file.row(exampleOf(read)) : null;
  return [
    titleOf(found),
    ...sections.flatMap(({ heading, rows }) => rows.map((row, i) => line(i === 0 ? heading : '', row))),
    ...(example ? exampleLines(example) : []),
  ].join('\n');
}

/** Index of the first row with an answer. */
function exampleOf({ file: { rows } }: ReadEvaluation): number {
  return Math.max(
    0,
    rows.findIndex(({ error }) => error === null),
  );
}

/** Marks the speaker: `<` the model, `~` a tool, `>` the user. */
export function exampleLines({ exampleId, prompt, completion, reward, answer, error }: ResultRow): string[] {
  const said = completion
    .map((message) => ({ role: message.role, text: messageText(message) }))
    .filter(({ text }) => text !== '')
    .map(({ role, text }) => {
      if (role === 'tool') return `~ tool: ${short(text)}`;
      return `${role === 'assistant' ? '<' : '>'} ${short(text)}`;
    });
  return [
    line('example', `#${exampleId}, reward ${figure(reward)}`),
    line('', `> ${short(prompt.at(-1)?.text ?? '')}`),
    ...said.map((text) => line('', text)),
    ...(answer === null ? [] : [line('', `= ${short(answer)}`)]),
    ...(error === null ? [] : [line('', `! ${short(error.message)}`)]),
  ];
}

function messageText({ text, calls }: ResultMessage): string {
  return [text, ...calls.map(({ name, arguments: args }) => `${name}(${args})`)]
    .filter((part) => part !== '')
    .join(' ');
}

function short(text: string): string {
  const plain = onOneLine(text);
  return plain.length <= exampleChars ? plain : `${plain.slice(0, exampleChars)}…`;
}

function line(heading: string, text: string): string {
  return `  ${heading.padEnd(13)} ${text}`.trimEnd();
}
