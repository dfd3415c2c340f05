" What a file of the language ficco is edited with. :%!ficco fmt - lays it out
setlocal commentstring=#\ %s
setlocal comments=:#
setlocal shiftwidth=2 softtabstop=2 expandtab
