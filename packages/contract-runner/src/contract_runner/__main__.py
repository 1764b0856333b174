from contract_runner.cli import main

main()
