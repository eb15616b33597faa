import type { Checked, LoadedEnvironment, WireTool } from '../../backends/environments/verifiers/protocol.ts';
import { RatchetError } from '../../core/errors.ts';
import type { InfoOptions } from '../describe/environment-info.ts';
import { alignedRows } from '../output/table.ts';
import { type AskedEnvironment, withPythonEnvironment } from './opened.ts';

/** Text of `ratchet env info` for a Python environment: loads it in a process of its own. Generates nothing. */
export async function pythonEnvironmentInfo(asked: AskedEnvironment, options: InfoOptions): Promise<string> {
  return withPythonEnvironment(asked, async ({ bridge, loaded, env, rows }) => {
    const declared = await bridge.check({ env });
    const [train, heldOut] = [await rows('train'), await rows('eval')];
    const shown = options.heldOut ? heldOut : train;
    const row = shown[options.example];
    if (row === undefined) {
      const kind = options.heldOut ? 'held-out examples' : 'examples to train on';
      throw new RatchetError(
        'ConfigInvalid',
        `--example: ${asked.id} has ${shown.length} ${kind}, counted from 0; received ${options.example}.`,
      );
    }
    const { python } = asked;
    const isShared = heldOut.length === train.length && heldOut[0] === train[0];
    return [
      `${asked.id} ${python.version}${python.source === undefined ? '' : `  (${python.source})`}`,
      ...(declared.doc === null ? [] : [`  ${declared.doc.split('\n')[0]}`]),
      `  verifiers     ${python.verifiers}, api ${python.api}, ${loaded.class}`,
      `  examples      ${train.length} to train on, ${isShared ? 'the same to evaluate on: it holds none out' : `${heldOut.length} held out`}`,
      `  rollouts      ${turns(loaded)}`,
      `  scored        ${scoring(loaded)}`,
      ...alignedRows('arguments', declared.arguments.map(argumentRow)),
      ...alignedRows(
        'rewards',
        loaded.reward_names.map((name, i) => rewardRow(name, loaded.weights[i] ?? 0)),
      ),
      ...alignedRows('tools', [...(loaded.tools ?? []).map(toolRow), ...(declared.tools ?? []).map(servedToolRow)]),
      ...(Object.keys(loaded.sampling).length === 0 ? [] : [`  sampling      ${JSON.stringify(loaded.sampling)}`]),
      '',
      ...exampleLines(row, options),
    ].join('\n');
  });
}

function turns({ is_single_turn, max_turns }: LoadedEnvironment): string {
  if (is_single_turn) return 'one answer';
  return max_turns === null || max_turns < 0 ? 'several turns, no bound' : `several turns, at most ${max_turns}`;
}

function scoring({ scoring: kind, scoring_why, requires_group }: LoadedEnvironment): string {
  const together = requires_group ? ', the rollouts of a group together' : '';
  if (kind === 'stored') return `from stored rollouts${together}`;
  return `where it is played${together}${scoring_why === null ? '' : `: ${scoring_why}`}`;
}

function rewardRow(name: string, weight: number): string[] {
  return [name, weight === 0 ? 'metric only' : `weight ${weight}`];
}

function argumentRow(one: { name: string; default: string | null; annotation: string | null }): string[] {
  return [one.name, one.default === null ? '–' : `= ${one.default}`, one.annotation ?? ''];
}

function toolRow(tool: WireTool): string[] {
  const {
    name = '',
    description = '',
    parameters,
  } = (tool['function'] ?? {}) as {
    name?: string;
    description?: string;
    parameters?: { properties?: object };
  };
  return [`${name}(${Object.keys(parameters?.properties ?? {}).join(', ')})`, description.split('\n')[0]!];
}

function servedToolRow({ name, description, parameters }: NonNullable<Checked['tools']>[number]): string[] {
  return [`${name}(${parameters.join(', ')})`, description.split('\n')[0]!];
}

/** Long texts are cut, since a terminal is not suited to them. */
const textCharsMax = 1_200;

function exampleLines(row: string, { example, heldOut }: InfoOptions): string[] {
  const { prompt, answer, info, task } = JSON.parse(row) as Record<string, unknown>;
  const which = `Example ${example}${heldOut ? ' of those held out' : ''}`;
  if (!Array.isArray(prompt)) return [`${which}:`, `  ${short(JSON.stringify(task ?? prompt))}`];
  return [
    `${which}${answer === undefined || answer === '' ? '' : `, right answer ${short(JSON.stringify(answer))}`}:`,
    ...prompt.flatMap((message: { role?: string; content?: unknown }) => messageLines(message)),
    ...(info === undefined || info === null ? [] : [`  info       ${short(JSON.stringify(info))}`]),
  ];
}

function messageLines({ role = '', content }: { role?: string; content?: unknown }): string[] {
  const text = short(typeof content === 'string' ? content : JSON.stringify(content ?? null));
  const [first = '', ...rest] = text.split('\n');
  return [`  ${role.padEnd(10)} ${first}`, ...rest.map((line) => `  ${' '.repeat(10)} ${line}`.trimEnd())];
}

function short(text: string): string {
  return text.length > textCharsMax ? `${text.slice(0, textCharsMax)} … (${text.length})` : text;
}
