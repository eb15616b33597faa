import { existsSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { Command, Option } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import { print } from '../../output/print.ts';
import { writePythonEnvironment } from '../../python-environments/write.ts';

export const init = new Command('init')
  .description('write a small environment that works, and a run file that trains on it, into this folder')
  .argument('<name>', 'small letters, digits, dashes: the files are called NAME.ts and NAME.toml')
  .option('--python', 'a package of verifiers in ./environments/NAME, in place of NAME.ts')
  .addOption(new Option('--tools', 'with a tool that the model calls').conflicts(['python', 'multiTurn']))
  .addOption(new Option('--multi-turn', 'a conversation of several turns').conflicts('python'))
  .action(async (name, { python = false, tools = false, multiTurn = false }) => {
    if (python) {
      const files = await writePythonEnvironment(name, process.cwd());
      print(
        [
          `wrote ${files.join(', ')}`,
          `  npx ratchet-rl env install ${name}   into a virtual environment of this project, with verifiers`,
          `  npx ratchet-rl env info ${name}      describes it`,
          `  npx ratchet-rl env check ${name}     whether it fits the verifiers that is installed, with a rollout played`,
          `  npx ratchet-rl check ${name}.toml    everything that is wrong with the run file`,
          `  npx ratchet-rl train ${name}.toml    trains on it`,
        ].join('\n'),
      );
      return;
    }
    await writeEnvironment(name, process.cwd(), tools ? 'tools' : multiTurn ? 'multi-turn' : 'single-turn');
    print(
      [
        `wrote ${name}.ts and ${name}.toml`,
        `  npx ratchet-rl env info ./${name}.ts    describes it, and plays and scores an example`,
        `  npx ratchet-rl check ${name}.toml       everything that is wrong with the run file`,
        `  npx ratchet-rl train ${name}.toml       trains on it`,
      ].join('\n'),
    );
  });

/** Templates of new environments, by shape; each is a run that works as it is. */
const templateFolders = { 'single-turn': '', tools: 'tools/', 'multi-turn': 'multi-turn/' } as const;
const templateName = 'my-env';

/** Writes NAME.ts and NAME.toml; fails if either exists. */
export async function writeEnvironment(
  name: string,
  folder: string,
  shape: keyof typeof templateFolders = 'single-turn',
): Promise<void> {
  if (!/^[a-z][a-z0-9-]{0,62}$/.test(name)) {
    throw new RatchetError(
      'ConfigInvalid',
      `${JSON.stringify(name)} cannot be an environment's name: expected up to 63 small letters, digits and dashes, beginning with a letter, such as "my-env".`,
    );
  }
  const files = ['.ts', '.toml'].map((ending) => ({ ending, file: path.join(folder, `${name}${ending}`) }));
  const there = files.filter(({ file }) => existsSync(file)).map(({ file }) => path.basename(file));
  if (there.length > 0) {
    throw new RatchetError(
      'ConfigInvalid',
      `${there.join(' and ')} ${there.length === 1 ? 'is' : 'are'} here already, and nothing is overwritten. Choose another name, or another folder.`,
    );
  }
  for (const { ending, file } of files) {
    const template = await readFile(
      new URL(`../../../configs/own-environment/${templateFolders[shape]}${templateName}${ending}`, import.meta.url),
      'utf8',
    );
    await writeFile(file, template.replaceAll(templateName, name), { flag: 'wx' });
  }
}
