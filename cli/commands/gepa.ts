import { Command } from '@commander-js/extra-typings';
import { runCommand } from '../gepa/run.ts';
import { showCommand } from '../gepa/show.ts';
import { adoptCommand, branchCommand, raiseCommand, stopCommand } from '../gepa/steer.ts';

export const gepaCommand = new Command('gepa')
  .description('look for better prompts: GEPA, within a budget, durably')
  .addCommand(runCommand)
  .addCommand(showCommand)
  .addCommand(stopCommand)
  .addCommand(raiseCommand)
  .addCommand(branchCommand)
  .addCommand(adoptCommand);
