/** docs/commands.md: what `--help` says of every command, and what each printed when the document was made. */
import type { Command } from 'commander';
import { commandGroups, program } from '../../cli/commands.ts';

/** By command: what was typed, and what it printed. */
export type Captures = ReadonlyMap<string, string>;

const helpWidth = 100;

export async function commandSections(captures: Captures): Promise<string> {
  const ratchet = await program(undefined, '0.0.0');
  const sections: string[] = [];
  for (const [title, group] of Object.entries(commandGroups)) {
    const lines = [`## ${title.replace(/:$/, '')}`, ''];
    for (const name of Object.keys(group)) {
      const [command] = (await program(name, '0.0.0')).commands;
      lines.push(...section(command!, captures.get(name)));
    }
    sections.push(lines.join('\n'));
  }
  return ['```text', helpOf(ratchet), '```', '', ...sections].join('\n');
}

function section(command: Command, capture: string | undefined): string[] {
  const helps = [command, ...command.commands].map((each) => helpOf(each));
  return [
    `### ratchet ${command.name()}`,
    '',
    '```text',
    helps.join('\n\n'),
    '```',
    '',
    ...(capture === undefined ? [] : ['```console', capture, '```', '']),
  ];
}

/** With what stands before and after it, at one width, in plain text. */
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

/** The captured output that the document holds. */
export function capturesIn(document: string): Captures {
  const sections = document.split(/^### ratchet /m).slice(1);
  return new Map(
    sections.flatMap((text): [string, string][] => {
      const name = /^[\w-]+/.exec(text)?.[0];
      const capture = /^```console\n([\s\S]*?)\n```$/m.exec(text)?.[1];
      return name === undefined || capture === undefined ? [] : [[name, capture]];
    }),
  );
}
