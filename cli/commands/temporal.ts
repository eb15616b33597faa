import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { Command } from 'commander';
import { readRunningStack } from '../../workers/project-lock.ts';
import { ensureTemporalCli } from '../../workers/temporal-cli.ts';

export const temporalCommand = new Command('temporal')
  .description('the Temporal CLI that was found or built, pointed at the server of this folder')
  .argument('[args...]')
  .allowUnknownOption()
  .helpOption(false)
  .action(async (args: string[]) => {
    const cli = await ensureTemporalCli({ log: (line) => process.stderr.write(`${line}\n`) });
    const running = await readRunningStack(process.cwd());
    const address = process.env['TEMPORAL_ADDRESS'] ?? running?.temporalAddress;
    const child = spawn(cli.path, args, {
      stdio: 'inherit',
      env: { ...process.env, ...(address ? { TEMPORAL_ADDRESS: address } : {}) },
    });
    const [code] = (await once(child, 'exit')) as [number | null];
    process.exitCode = code ?? 1;
  });
