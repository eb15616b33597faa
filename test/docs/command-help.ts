/** docs/guide/commands.md and a page for each group of commands: what `--help` says, and what each printed when the page was made. */
import type { CommandUnknownOpts as Command } from '@commander-js/extra-typings';
import { commandGroups, program } from '../../cli/commands.ts';
import type { MadeDocument } from './documents.ts';

/** Typed line and output, by command. */
export type Captures = ReadonlyMap<string, string>;

const helpWidth = 100;

const groups = Object.entries(commandGroups).map(([heading, group]) => {
  const title = heading.replace(/:$/, '');
  const file = `commands/${title.toLowerCase().replaceAll(/[^a-z]+/g, '-')}.md`;
  return { title, file, names: Object.keys(group), lines: group };
});

/** Every command in a line, with a link to what it says and prints. */
export function commandIndex(): string {
  return groups
    .flatMap(({ title, file, names, lines }) => [
      `## [${title}](${file})`,
      '',
      '| ratchet … | |',
      '| --- | --- |',
      ...names.map((name) => `| [${name}](${file}#ratchet-${name}) | ${lines[name]!.line} |`),
      '',
    ])
    .join('\n');
}

export const commandPages: readonly MadeDocument[] = groups.map(({ title, file, names }) => ({
  file,
  body: async (captures: Captures) => {
    const programs = await Promise.all(names.map((name) => program(name, '0.0.0')));
    return [
      `# ${title}: commands`,
      '',
      `${names.map((name) => `[${name}](#ratchet-${name})`).join(' · ')}. [All commands](../commands.md).`,
      '',
      ...names.flatMap((name, i) => section(programs[i]!.commands[0]!, captures.get(name))),
    ].join('\n');
  },
}));

function section(command: Command, capture: string | undefined): string[] {
  const helps = [command, ...command.commands].map((each) => helpOf(each));
  return [
    `## ratchet ${command.name()}`,
    '',
    '```text',
    helps.join('\n\n'),
    '```',
    '',
    ...(capture === undefined ? [] : ['```console', capture, '```', '']),
  ];
}

/** Help with the texts before and after it, at one width, without styles. */
function helpOf(command: Command): string {
  let text = '';
  const write = (piece: string): void => void (text += piece);
  command.configureOutput({
    writeOut: write,
    writeErr: write,
    getOutHelpWidth: () => helpWidth,
    getErrHelpWidth: () => helpWidth,
    getOutHasColors: () => false,
  });
  command.outputHelp();
  return text.trim().replaceAll(/[ \t]+$/gm, '');
}

/** The captured output that a page holds. */
export function capturesIn(page: string): Captures {
  const sections = page.split(/^## ratchet /m).slice(1);
  return new Map(
    sections.flatMap((text): [string, string][] => {
      const name = /^[\w-]+/.exec(text)?.[0];
      const capture = /^```console\n([\s\S]*?)\n```$/m.exec(text)?.[1];
      return name === undefined || capture === undefined ? [] : [[name, capture]];
    }),
  );
}
